"""What can be said of a run now; each figure with its source and age."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from launcher.store import LinkRow, RunRow, Store


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
    step_age_seconds: float | None
    target_step: int
    steps_per_second: float | None
    eta_seconds: float | None
    loss: float | None
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
    raise NotImplementedError
