"""Submit a chain link by link, and cancel a whole one.

A submission is a write-ahead transaction: the intent is committed, then the scheduler is asked, then the id is
recorded. A launcher that dies in between leaves an intent, which reconcile.py settles; nothing is submitted twice.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from launcher.errors import LockHeld, PartialChain, PreflightError, SubmissionRefused, SubmissionUnsure
from launcher.intents import Intent, new_intent, write_intent
from launcher.records import LinkState, RunPlan
from launcher.scheduler.base import Job, JobState, QueueUnavailable, Scheduler
from launcher.store import LinkRow, RunRow, Store

LOOK_UP_PAUSES = (1.0, 3.0, 6.0)  # seconds before each look for a job whose submission is unsure; then it is left so
CANCEL_SECONDS = 60.0  # how long the last cancel may take to clear the queue, a slow epilog included
LOOK_SECONDS = 1.0  # between two looks while cancelling


@dataclass(frozen=True)
class ChainReport:
    """What was submitted."""

    job_ids: tuple[str, ...]  # by link
    notes: tuple[str, ...]  # what a person should know, for stderr


@dataclass(frozen=True)
class CancelReport:
    """What a cancel did."""

    cancelled: tuple[str, ...]  # job ids that were live at some time of it
    survivors: tuple[Job, ...]  # still live after all of it; empty when two looks in a row were clean


def submit_chain(
    plan: RunPlan, store: Store, scheduler: Scheduler, pauses: Sequence[float] = LOOK_UP_PAUSES
) -> ChainReport:
    """Submit every link that has no job yet: intent, then the scheduler, then the id.

    Raises:
        SubmissionRefused: the first link was refused; no job exists.
        SubmissionUnsure: it is not known whether the last tried link has a job; nothing more was submitted.
        PartialChain: some links were accepted, then one was not.
        PreflightError: the scheduler's programs are not here.
        LockHeld: another process kept the database locked.
    """
    known = {link.number: link for link in store.links(plan.run_id)}
    job_ids: list[str] = []
    new: list[str] = []
    notes: list[str] = []
    for number in range(1, plan.chain.links + 1):
        link = known.get(number)
        if link is not None and link.job_id is not None:
            job_ids.append(link.job_id)
            continue
        if link is not None and link.state is not LinkState.REFUSED:
            raise SubmissionUnsure(f"link {number} of {plan.run_id} may have a job already; see launch status")
        try:
            job_id, note = _submit_link(plan, number, job_ids[-1] if job_ids else None, store, scheduler, pauses)
        except (SubmissionRefused, PreflightError, LockHeld) as error:  # refused; sbatch or the database went away
            if not job_ids:
                raise
            scheduler.start(plan, new)
            raise PartialChain(
                f"{len(job_ids)} of {plan.chain.links} links of {plan.run_id} were submitted, then: {error}. "
                f"They are kept; to end them: launch cancel {plan.run_id}"
            ) from error
        job_ids.append(job_id)
        new.append(job_id)
        notes += note
    scheduler.start(plan, new)
    return ChainReport(tuple(job_ids), tuple(notes))


def _submit_link(
    plan: RunPlan, number: int, previous: str | None, store: Store, scheduler: Scheduler, pauses: Sequence[float]
) -> tuple[str, list[str]]:
    """(job id, notes) of one link submitted."""
    intent = new_intent(plan, number, time.time())
    write_intent(plan.paths, intent)
    row = LinkRow(plan.run_id, number, LinkState.INTENDED, None, intent.submitted, None, "")
    store.put_link(row)
    notes: list[str] = []
    try:
        job_id = scheduler.submit(plan, number, previous)
    except (SubmissionRefused, PreflightError) as error:
        store.put_link(replace(row, state=LinkState.REFUSED, detail=str(error)))
        raise
    except SubmissionUnsure as error:
        store.put_link(replace(row, state=LinkState.UNSURE, detail=str(error)))
        found = _look_up(plan, number, scheduler, pauses)
        if found is None:
            raise SubmissionUnsure(
                f"link {number} of {plan.run_id}: {error}. It may have a job or not; nothing more is submitted. "
                f"Look again with: launch status {plan.run_id}"
            ) from error
        job_id = found
        notes.append(f"link {number}: {error}; job {job_id} was found in the queue by its token")
    store.put_link(replace(row, state=LinkState.QUEUED, job_id=job_id))
    write_intent(plan.paths, replace(intent, job_id=job_id))
    return job_id, notes


def _look_up(plan: RunPlan, number: int, scheduler: Scheduler, pauses: Sequence[float]) -> str | None:
    """The job that carries this link's token, looked for a few times."""
    for pause in pauses:
        time.sleep(pause)
        try:
            found = [job for job in scheduler.jobs(plan.token) if job.link == number]
        except QueueUnavailable:
            continue
        if found:
            return min(found, key=lambda job: int(job.job_id) if job.job_id.isdigit() else 0).job_id
    return None


def cancel_run(
    run: RunRow,
    store: Store,
    scheduler: Scheduler,
    report: Callable[[str], None],
    save_wait: float | None = None,
    look_seconds: float = LOOK_SECONDS,
) -> CancelReport:
    """Cancel the whole chain: stop file, pending tail, soft signal, bounded wait for the save, then all that is left.

    The stop file comes first, since a link can start between a look and a cancel; it then ends at once. Only jobs with
    this run's token in name and comment are touched. `save_wait` is how long the running link may take to save, in
    seconds (None: the run's save margin; 0: no soft signal).

    Raises:
        QueueUnavailable: could not ask; its text says whether the stop file is in place.
    """
    stop = f"the stop file of {run.run_id} is in place, so no link of it trains on"
    try:
        run.paths.stop.write_text(f"cancelled by {getpass.getuser()} at {time.time():.0f}\n")
    except OSError as error:  # the run directory was removed, or its disk is full: its jobs must end all the more
        stop = f"its stop file cannot be written ({error.strerror}: {run.paths.stop})"
        report(stop)
    wait = run.save_margin_seconds if save_wait is None else save_wait
    try:
        return _cancel(run, scheduler, report, wait, look_seconds)
    except QueueUnavailable as error:
        raise QueueUnavailable(f"{error}; {stop}") from error


def _cancel(
    run: RunRow, scheduler: Scheduler, report: Callable[[str], None], wait: float, look_seconds: float
) -> CancelReport:
    seen: dict[str, Job] = {}

    def look() -> list[Job]:
        live = _tail_first(job for job in scheduler.jobs(run.token) if job.live)
        seen.update({job.job_id: job for job in live})
        return live

    live = look()
    pending = [job for job in live if job.state is JobState.PENDING]
    running = [job for job in live if job.state is not JobState.PENDING]
    if pending:
        report(f"cancelling {len(pending)} waiting: {_listed(pending)}")
        scheduler.cancel([job.job_id for job in pending])
    if running and wait > 0:
        report(f"asking {_listed(running)} to save; waiting up to {wait:.0f} s")
        scheduler.ask_to_save([job.job_id for job in running])
        end = time.monotonic() + wait
        while any(job.state is not JobState.PENDING for job in live) and time.monotonic() < end:
            time.sleep(look_seconds)
            live = look()
    clean, end, told = 0, time.monotonic() + CANCEL_SECONDS, False
    while True:
        live = look()
        clean = 0 if live else clean + 1
        if clean == 2 or time.monotonic() > end:
            return CancelReport(tuple(seen), tuple(live))
        # A job that is COMPLETING has been ended; its nodes are waited for, and a second request changes nothing.
        to_end = [job for job in live if job.state is not JobState.COMPLETING]
        if to_end:
            if not told:
                report(f"cancelling what is left: {_listed(to_end)}")
            told = True
            scheduler.cancel([job.job_id for job in to_end])
        time.sleep(look_seconds)


def _tail_first(jobs: Iterable[Job]) -> list[Job]:
    """The last link first, so that no cancel lets the next link start."""
    return sorted(jobs, key=lambda job: job.link or 0, reverse=True)


def _listed(jobs: Sequence[Job]) -> str:
    return ", ".join(f"link {job.link} (job {job.job_id})" for job in jobs)


def rebuild_links(run: RunRow, store: Store, intents: Iterable[Intent]) -> int:
    """Put back link rows that the database lacks, from the intents in the run directory; how many."""
    known = {link.number for link in store.links(run.run_id)}
    missing = [intent for intent in intents if intent.number not in known]
    for intent in missing:
        state = LinkState.UNSURE if intent.job_id is None else LinkState.UNKNOWN
        store.put_link(LinkRow(run.run_id, intent.number, state, intent.job_id, intent.submitted, None, "rebuilt"))
    return len(missing)
