"""What the launcher asks of this link, and when to end it. The one place that reads LAUNCH_* (docs/contract.md)."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dflash_train.errors import ConfigError


@dataclass(frozen=True)
class Assignment:
    """run_dir: where everything is written; link: from 1; deadline: unix seconds or None; target_step: or None."""

    run_dir: Path
    link: int
    deadline: float | None
    target_step: int | None

    @classmethod
    def read(cls, run_dir: Path | None) -> Assignment:
        """From the environment; `run_dir` is for runs by hand. Raises ConfigError where neither names a folder."""
        environment = os.environ
        folder = run_dir or (Path(environment["LAUNCH_RUN_DIR"]) if "LAUNCH_RUN_DIR" in environment else None)
        if folder is None:
            raise ConfigError("no run directory: start the training with `launch`, or give --run-dir")
        try:
            deadline = environment.get("LAUNCH_DEADLINE")
            target_step = environment.get("LAUNCH_TARGET_STEP")
            return cls(
                run_dir=folder,
                link=int(environment.get("LAUNCH_LINK", "1")),
                deadline=float(deadline) if deadline else None,
                target_step=int(target_step) if target_step else None,
            )
        except ValueError as error:
            raise ConfigError(f"LAUNCH_LINK, LAUNCH_DEADLINE and LAUNCH_TARGET_STEP are numbers: {error}") from None


@dataclass
class StopWatch:
    """Asked once a step on every rank; the ranks agree on the answer elsewhere."""

    assignment: Assignment
    signalled: bool = field(default=False, init=False)

    def listen(self) -> None:
        """SIGTERM and SIGUSR1 mean: save at the next step boundary and end."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    def ignore(self) -> None:
        """After the last save: a signal that arrives while Python shuts down would otherwise kill the process, since
        Python restores the default action then, and a link that saved would count as crashed."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True

    def reason(self) -> str | None:
        """Why to end now, or None."""
        if self.signalled:
            return "a signal"
        if (self.assignment.run_dir / "STOP").exists():
            return "the stop file"
        if self.assignment.deadline is not None and time.time() >= self.assignment.deadline:
            return "the deadline"
        return None
