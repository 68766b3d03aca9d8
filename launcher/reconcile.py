"""Bring the database up to what queue, events and checkpoints say. Runs at the start of every command."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from launcher.chain import rebuild_links
from launcher.events import beacons, exit_records, ingest_events
from launcher.intents import launcher_alive, read_intent, read_intents, write_intent
from launcher.judge import Evidence, choose_job, is_open, judge
from launcher.records import Backend, LinkState
from launcher.scheduler.base import Job, JobState, QueueUnavailable, Scheduler, scheduler_for
from launcher.store import LinkRow, RunRow, Store

LOOKS_APART = 90.0  # seconds; a controller may answer before it lists a job that it has just accepted


class Queue:
    """One question to each backend for all runs of one command, asked when first needed."""

    def __init__(self, work_root: Path, scheduler: Scheduler | None) -> None:
        self.work_root, self.given = work_root, scheduler
        self.schedulers: dict[Backend, Scheduler] = {}
        self.answers: dict[Backend, tuple[tuple[Job, ...] | None, str]] = {}

    def scheduler(self, backend: Backend) -> Scheduler:
        if backend not in self.schedulers:
            self.schedulers[backend] = self.given or scheduler_for(backend, self.work_root)
        return self.schedulers[backend]

    def ask(self, backend: Backend) -> tuple[tuple[Job, ...] | None, str]:
        """(jobs, "") or (None, why not)."""
        if backend not in self.answers:
            try:
                self.answers[backend] = self.scheduler(backend).jobs(), ""
            except QueueUnavailable as error:
                self.answers[backend] = None, str(error)
        return self.answers[backend]


def reconcile(
    store: Store,
    run: RunRow | None = None,
    force: bool = False,
    *,
    scheduler: Scheduler | None = None,
    clock: Callable[[], float] = time.time,
    looks_apart: float = LOOKS_APART,
) -> list[str]:
    """Ingest events, adopt jobs by token, update link states; notes for stderr.

    Nothing is submitted or cancelled here. The queue is asked at most once in the run's `poll_seconds`, or at once with
    `force`. A queue that cannot be asked makes link states UNKNOWN at most, never ended.
    """
    queue = Queue(store.path.parent, scheduler)
    notes: list[str] = []
    for one in store.runs() if run is None else [run]:
        notes += _reconcile_run(store, one, queue, force, run is not None, clock(), looks_apart)
    return notes


def _reconcile_run(
    store: Store, run: RunRow, queue: Queue, force: bool, thorough: bool, now: float, looks_apart: float
) -> list[str]:
    links = store.links(run.run_id)
    if len(links) < run.links:
        rebuild_links(run, store, read_intents(run.paths))
        links = store.links(run.run_id)
    if links and not any(is_open(link) for link in links) and not thorough:
        return []
    news = ingest_events(store, run)
    to_judge = [link for link in links if news or is_open(link)]
    due = force or run.queue_asked is None or now - run.queue_asked >= run.poll_seconds
    jobs: tuple[Job, ...] | None = None
    error = ""
    if due and any(is_open(link) for link in to_judge):
        jobs, error = queue.ask(run.backend)
        store.note_queue(run.run_id, None if jobs is None else now, error)
    records, signs = exit_records(store, run.run_id), beacons(store, run.run_id)
    notes: list[str] = []
    for link in to_judge:
        mine = None if jobs is None else tuple(j for j in jobs if j.token == run.token and j.link == link.number)
        newest = [record for (number, _), record in records.items() if number == link.number]
        evidence = Evidence(
            now=now,
            looks_apart=looks_apart if run.backend is Backend.SLURM else 0.0,
            queue_error=error,
            jobs=mine,
            record=records.get((link.number, link.job_id)) if link.job_id else newest[-1] if newest else None,
            beacon=signs.get(link.number),
            end=None,
            submitter_alive=None,
        )
        try:
            evidence = _ask_more(run, link, evidence, queue)
        except QueueUnavailable as unavailable:
            evidence = replace(evidence, queue_error=str(unavailable), jobs=None)
        judgement = judge(link, evidence)
        if judgement.link != link and store.replace_link(link, judgement.link):
            intent = read_intent(run.paths.link_json(link.number))
            if link.job_id is None and judgement.link.job_id is not None and intent is not None:
                write_intent(run.paths, replace(intent, job_id=judgement.link.job_id))
        notes += judgement.notes
    return notes


def _ask_more(run: RunRow, link: LinkRow, evidence: Evidence, queue: Queue) -> Evidence:
    """Add what is only asked where it matters: how a job ended, and whether its submission is still going on."""
    if evidence.jobs is None or evidence.record is not None:
        return evidence
    job = choose_job(evidence.jobs, link.job_id)
    if job is not None and job.state is JobState.ENDED:
        return replace(evidence, end=queue.scheduler(run.backend).end_of(job.job_id))
    if job is None and link.job_id is not None:
        # A local link has its id before its supervisor is there, which the launcher starts last.
        starting = _launcher_of(run, link) if run.backend is Backend.LOCAL else None
        return replace(evidence, end=queue.scheduler(run.backend).end_of(link.job_id), submitter_alive=starting)
    if job is None and link.state in (LinkState.INTENDED, LinkState.UNSURE):
        alive = _launcher_of(run, link)
        # An unsure link's launcher has given up on it; its sbatch may still be at work. The same if it was killed.
        if alive is not None and not (alive and link.state is LinkState.INTENDED):
            alive = queue.scheduler(run.backend).submitting(run.paths.script(link.number))
        return replace(evidence, submitter_alive=alive)
    return evidence


def _launcher_of(run: RunRow, link: LinkRow) -> bool | None:
    """Whether the launcher that meant to submit a link still runs; None when that cannot be told from here."""
    intent = read_intent(run.paths.link_json(link.number))
    return None if intent is None else launcher_alive(intent)
