"""<run>/links/NNNN.json: what was to be submitted, by which process, and the job it became.

The database row says the same; this file is there so that the rows can be rebuilt, and for the local supervisor.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.processes import is_alive, machine_id, start_ticks
from launcher.records import RunPaths, RunPlan


@dataclass(frozen=True)
class Intent:
    """The intent of one submission, written before it, and the job's id, written after."""

    run_id: str
    token: str
    number: int
    walltime_seconds: int
    save_margin_seconds: int
    submitted: float  # unix seconds
    machine: str  # where the launcher ran, and as which process
    pid: int
    ticks: int
    job_id: str | None = None


def new_intent(plan: RunPlan, number: int, now: float) -> Intent:
    """The intent of this process to submit link `number` now."""
    pid = os.getpid()
    return Intent(
        run_id=plan.run_id,
        token=plan.token,
        number=number,
        walltime_seconds=plan.chain.walltime(number),
        save_margin_seconds=plan.site.save_margin_seconds,
        submitted=now,
        machine=machine_id(),
        pid=pid,
        ticks=start_ticks(pid) or 0,
    )


def write_intent(paths: RunPaths, intent: Intent) -> None:
    """Replace the link's file in one step, on disk before this returns."""
    path = paths.link_json(intent.number)
    temporary = path.with_suffix(".json.tmp")
    with temporary.open("w") as file:
        file.write(json.dumps(asdict(intent), indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_intent(path: Path) -> Intent | None:
    """The intent in a file; None where there is none that can be read."""
    try:
        return Intent(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def read_intents(paths: RunPaths) -> list[Intent]:
    """All intents of a run, by number."""
    found = [read_intent(path) for path in sorted(paths.links.glob("[0-9]*.json"))]
    return [intent for intent in found if intent is not None]


def launcher_alive(intent: Intent) -> bool | None:
    """Whether the launcher that wrote it still runs; None when that was on another machine."""
    return is_alive(intent.pid, intent.ticks) if intent.machine == machine_id() else None
