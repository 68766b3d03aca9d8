"""What can be said of a run now; each figure with its source and age."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from launcher.intents import launcher_alive, read_intent
from launcher.metrics import read_tail, steps_per_second
from launcher.records import LinkOutcome, LinkState, RunPaths
from launcher.scheduler.squeue import STUCK_REASONS
from launcher.store import LinkRow, RunRow, Store

_WELL_ENDED = (
    LinkOutcome.FINISHED,
    LinkOutcome.HANDED_OVER,
    LinkOutcome.STOPPED,
    LinkOutcome.NOT_NEEDED,
    LinkOutcome.CANCELLED,
)
_NOT_KNOWN = (LinkState.INTENDED, LinkState.UNSURE, LinkState.UNKNOWN)


class RunPhase(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"  # no link runs, at least one waits
    RUNNING = "running"
    FINISHED = "finished"  # the target step has a complete checkpoint
    STOPPED = "stopped"  # cancelled, or ended at the stop file
    ENDED = "ended"  # no link is left and the target step was not reached
    UNSURE = "unsure"  # a submission or a link's state is not known


@dataclass(frozen=True)
class RunStatus:
    """One run, as `launch status` shows it."""

    run: RunRow
    phase: RunPhase
    step: int | None  # last step in metrics.jsonl; None before the first
    step_age_seconds: float | None  # by its own time; never below zero, whatever the clocks say
    target_step: int
    steps_per_second: float | None
    eta_seconds: float | None  # training time still to come at this rate; waiting in the queue is not in it
    loss: float | None  # of the last step that was not skipped
    link: int | None  # the running link, else the last that ran
    links: tuple[LinkRow, ...]
    accepted_step: int | None
    checkpoint_step: int | None  # newest complete checkpoint
    queue_age_seconds: float | None  # since the queue last answered
    alarms: tuple[str, ...]

    @property
    def over(self) -> bool:
        """No link is left that could change anything."""
        return self.phase in (RunPhase.FINISHED, RunPhase.STOPPED, RunPhase.ENDED)


def read_status(run: RunRow, store: Store, now: float) -> RunStatus:
    """The status of one run from the database, metrics.jsonl and the checkpoints; asks no scheduler."""
    run = next((row for row in store.runs() if row.run_id == run.run_id), run)  # reconcile may have learnt of the queue
    links = tuple(store.links(run.run_id))
    steps = read_tail(run.paths.metrics)
    last = steps[-1] if steps else None
    rate = steps_per_second(steps)
    checkpoint = newest_complete(run.paths)
    phase = run_phase(links, run, checkpoint, run.paths.stop.exists())
    accepted = store.acceptances(run.run_id)
    to_go = run.target_step - last.step if last else run.target_step
    started = [link.number for link in links if link.state in (LinkState.RUNNING, LinkState.ENDED)]
    running = [link.number for link in links if link.state is LinkState.RUNNING]
    return RunStatus(
        run=run,
        phase=phase,
        step=last.step if last else None,
        step_age_seconds=max(0.0, now - last.time) if last else None,
        target_step=run.target_step,
        steps_per_second=rate,
        eta_seconds=max(0, to_go) / rate if rate and phase in (RunPhase.RUNNING, RunPhase.QUEUED) else None,
        loss=next((line.loss for line in reversed(steps) if line.loss is not None), None),
        link=running[0] if running else max(started, default=None),
        links=links,
        accepted_step=accepted[-1].step if accepted else None,
        checkpoint_step=checkpoint,
        queue_age_seconds=None if run.queue_asked is None else max(0.0, now - run.queue_asked),
        alarms=tuple(find_alarms(run, links, phase, last.step if last else 0, checkpoint)),
    )


def newest_complete(paths: RunPaths) -> int | None:
    """The step of the newest checkpoint with a readable manifest."""
    newest = None
    for manifest in paths.checkpoints.glob("step=*/manifest.json"):
        try:
            step = int(json.loads(manifest.read_text())["step"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            continue
        newest = step if newest is None else max(newest, step)
    return newest


def run_phase(links: Sequence[LinkRow], run: RunRow, checkpoint: int | None, stop: bool) -> RunPhase:
    """Where the run is in its life. A link that still runs counts as running until its job has ended."""
    states = {link.state for link in links}
    outcomes = [link.outcome for link in links if link.outcome is not None]
    reached = checkpoint is not None and checkpoint >= run.target_step
    # Once one link has finished, those behind it end within a second each: they change nothing.
    if reached and (LinkState.RUNNING not in states or LinkOutcome.FINISHED in outcomes):
        return RunPhase.FINISHED
    if LinkState.RUNNING in states:
        return RunPhase.RUNNING
    if any(state in states for state in _NOT_KNOWN) or any(
        link.state is LinkState.ENDED and link.outcome is None for link in links
    ):
        return RunPhase.UNSURE
    if LinkState.QUEUED in states:
        return RunPhase.QUEUED
    return RunPhase.STOPPED if stop else RunPhase.ENDED


def still_submitting(run: RunRow, links: Sequence[LinkRow]) -> bool:
    """Whether a launcher on this machine is at work on the chain's submission."""
    if not links or any(link.state in (LinkState.UNSURE, LinkState.REFUSED) for link in links):
        return False  # that is where a launcher leaves a chain
    intent = read_intent(run.paths.link_json(links[-1].number))
    return intent is not None and launcher_alive(intent) is True


def find_alarms(run: RunRow, links: Sequence[LinkRow], phase: RunPhase, step: int, checkpoint: int | None) -> list[str]:
    """What somebody should look at, one line each, the gravest first."""
    alarms = []
    if not run.run_dir.is_dir():
        alarms.append(f"its directory {run.run_dir} is gone; links that are left: launch cancel {run.run_id}")
    for link in links:
        where = f"link {link.number}" + (f" (job {link.job_id})" if link.job_id else "")
        if link.state in (LinkState.UNSURE, LinkState.REFUSED):
            alarms.append(f"{where}: submission {link.state}: {link.detail}")
        elif link.state is LinkState.UNKNOWN:
            alarms.append(f"{where}: state unknown: {link.detail}")
        elif link.state is LinkState.QUEUED and any(reason in link.detail for reason in STUCK_REASONS):
            alarms.append(f"{where} will never start by itself: {link.detail}; launch cancel {run.run_id}")
        elif link.detail == "SupervisorGone":
            alarms.append(f"{where}: its supervisor was killed; the link saves and ends")
        elif link.outcome is not None and link.outcome not in _WELL_ENDED:
            alarms.append(f"{where}: {link.outcome}: {link.detail}")
    submitted = sum(link.job_id is not None for link in links)
    if submitted < run.links and phase is not RunPhase.FINISHED and not still_submitting(run, links):
        # No link is added to a chain later, so a whole one takes another launch.
        rest = f"the others run on; for a whole chain: launch cancel {run.run_id}, then launch {run.spec_path}"
        if phase in (RunPhase.ENDED, RunPhase.STOPPED):
            rest = f"for a whole chain: launch {run.spec_path}"
        alarms.append(f"only {submitted} of {run.links} links were submitted: {rest}")
    if phase is RunPhase.ENDED:
        reached = f"step {checkpoint}" if checkpoint else "no complete checkpoint"
        alarms.append(f"no link is left and the target step {run.target_step} is not reached ({reached})")
    if step and checkpoint is None and phase in (RunPhase.ENDED, RunPhase.STOPPED):
        alarms.append(f"{step} steps were made and no complete checkpoint is there")
    if run.queue_error:
        alarms.append(f"the queue could not be asked: {run.queue_error}")
    return alarms
