"""Submit a chain link by link, and cancel a whole one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from launcher.records import RunPlan
from launcher.scheduler.base import Job, Scheduler
from launcher.store import RunRow, Store


@dataclass(frozen=True)
class ChainReport:
    """What was submitted."""

    job_ids: tuple[str, ...]  # by link
    notes: tuple[str, ...]  # what a person should know, for stderr


@dataclass(frozen=True)
class CancelReport:
    """What a cancel did."""

    cancelled: tuple[str, ...]  # job ids that were live when it began
    survivors: tuple[Job, ...]  # still live after all of it; empty when two looks in a row were clean


def submit_chain(plan: RunPlan, store: Store, scheduler: Scheduler) -> ChainReport:
    """Submit every link that has no job yet: intent row, then the scheduler, then the id.

    Raises:
        SubmissionRefused: the first link was refused; no job exists.
        SubmissionUnsure: it is not known whether the last tried link has a job; nothing more was submitted.
        PartialChain: some links were accepted, then one refused.
    """
    raise NotImplementedError


def cancel_run(
    run: RunRow, store: Store, scheduler: Scheduler, report: Callable[[str], None], save_wait: float | None = None
) -> CancelReport:
    """Cancel the whole chain: stop file, pending tail, soft signal, bounded wait for the save, then all that is left.

    `save_wait` is how long the running link may take to save, in seconds (None: the run's save margin; 0: at once).

    Raises:
        QueueUnavailable: could not ask; the stop file is in place all the same.
    """
    raise NotImplementedError
