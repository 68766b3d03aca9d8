"""What the launcher asks of a scheduler, and the words in which it gets its answers.

Only `submit` may fail in three ways (accepted, refused, unsure); a look at the queue either answers or raises
`QueueUnavailable`, which means "could not ask" and never "gone".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from launcher.errors import LauncherError, SubmissionUnsure
from launcher.records import Backend, RunPlan


class JobState(StrEnum):
    """What a scheduler says of one job, in five words."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"  # over, but its nodes are not free yet
    ENDED = "ended"
    OTHER = "other"  # a state word that we do not know: not taken as ended


@dataclass(frozen=True)
class Job:
    """One job as the scheduler describes it."""

    job_id: str
    link: int | None  # from the comment; None when it cannot be read there
    token: str | None
    state: JobState
    word: str  # the scheduler's own state word: TIMEOUT, NODE_FAIL, ...
    reason: str  # why it waits, or why it ended; empty when there is none
    time_limit: str  # as the scheduler writes it
    nodes: str

    @property
    def live(self) -> bool:
        return self.state is not JobState.ENDED


@dataclass(frozen=True)
class JobEnd:
    """How the scheduler says a job ended."""

    word: str  # COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, ...
    exit_code: int
    signal: int


class QueueUnavailable(LauncherError):
    """The scheduler could not be asked. Nothing follows from it about any job."""

    exit_code = SubmissionUnsure.exit_code


class Scheduler(Protocol):
    """A place where links run."""

    def submit(self, plan: RunPlan, number: int, previous: str | None) -> str:
        """Submit link `number` behind job `previous`; the new job's id.

        Raises:
            SubmissionRefused: no job exists.
            SubmissionUnsure: a job may exist.
            PreflightError: the scheduler's programs are not here.
        """
        ...

    def start(self, plan: RunPlan, job_ids: Sequence[str]) -> None:
        """Called once when every link is submitted: the local supervisor starts here, Slurm has started already."""
        ...

    def jobs(self, token: str | None = None) -> tuple[Job, ...]:
        """This user's jobs that carry `token` (None: any run's token), ended ones too while they are known.

        Raises:
            QueueUnavailable: could not ask.
        """
        ...

    def end_of(self, job_id: str) -> JobEnd | None:
        """How a job ended; None when the scheduler no longer knows it or it has not ended.

        Raises:
            QueueUnavailable: could not ask.
        """
        ...

    def ask_to_save(self, job_ids: Sequence[str]) -> None:
        """Send the soft signal (SIGUSR1) to running links: save at the next step boundary and end."""
        ...

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel these jobs in one request, in the order given.

        Raises:
            QueueUnavailable: could not ask.
        """
        ...

    def submitting(self, script: Path) -> bool:
        """Whether a process on this machine is still submitting `script`."""
        ...


def scheduler_for(backend: Backend, work_root: Path) -> Scheduler:
    """The scheduler of a backend. Its modules are imported here, since `launch --help` must not pay for them."""
    if backend is Backend.SLURM:
        from launcher.scheduler.slurm import SlurmScheduler

        return SlurmScheduler()
    from launcher.scheduler.local import LocalScheduler

    return LocalScheduler(work_root)
