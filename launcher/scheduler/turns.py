"""The local supervisor's state, <run>/links/supervisor.json: it alone writes it, everybody may read it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

FILE = "supervisor.json"
KILL_WAIT = 5.0  # seconds between SIGTERM and SIGKILL, as Slurm's setting of that name


class TurnState(StrEnum):
    """A link's turn, in Slurm's words, so that one reader serves both backends."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True)
class Turn:
    """One link under the supervisor."""

    number: int
    job_id: str
    state: TurnState = TurnState.PENDING
    pid: int = 0  # of the script, then of the agent; its process group too
    ticks: int = 0
    exit_code: int = 0
    signal: int = 0


@dataclass(frozen=True)
class SupervisorState:
    """One supervisor and its links."""

    token: str
    machine: str
    pid: int
    ticks: int
    heartbeat: float  # unix seconds
    turns: tuple[Turn, ...]


def write_state(links: Path, state: SupervisorState) -> None:
    """Replace the state file in one step."""
    temporary = links / (FILE + ".tmp")
    temporary.write_text(json.dumps(asdict(state), indent=1) + "\n")
    os.replace(temporary, links / FILE)


def read_state(links: Path) -> SupervisorState | None:
    """The state, or None where there is none that can be read.

    One damaged file must not hide every other run; a supervisor that lives writes its file anew every few seconds.
    """
    try:
        values = json.loads((links / FILE).read_text())
        turns = tuple(Turn(**{**turn, "state": TurnState(turn["state"])}) for turn in values["turns"])
        return SupervisorState(**{**values, "turns": turns})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def cancel_file(links: Path, number: int) -> Path:
    """Where this lies, link `number` is not started, or ended if it runs."""
    return links / f"{number:04d}.cancel"
