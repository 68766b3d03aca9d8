"""Reading metrics.jsonl: the end of the file is enough, the last line of a step wins, a torn last line waits."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL_BYTES = 256 * 1024
RATE_STEPS = 50  # steps over which the rate is taken


@dataclass(frozen=True)
class StepLine:
    """What one optimizer step said of itself; names as in docs/contract.md."""

    step: int
    link: int
    time: float  # unix seconds, by the node's clock
    loss: float | None  # None: the step was skipped
    step_seconds: float
    skipped: bool
    grad_norm: float | None = None


def parse_steps(lines: Iterable[bytes]) -> list[StepLine]:
    """The steps in these lines, by step. A link that resumed says some steps again: what it says last counts."""
    steps: dict[int, StepLine] = {}
    for line in lines:
        try:
            value = json.loads(line)
            if "loss" not in value:  # a validation line
                continue
            steps[int(value["step"])] = StepLine(
                step=int(value["step"]),
                link=int(value["link"]),
                time=float(value["time"]),
                loss=_number(value["loss"]),
                step_seconds=float(value["step_seconds"]),
                skipped=bool(value["skipped"]),
                grad_norm=_number(value.get("grad_norm")),
            )
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
    return [steps[step] for step in sorted(steps)]


def read_steps(path: Path) -> list[StepLine]:
    """All steps of a metrics file; empty before the first."""
    try:
        with path.open("rb") as file:
            return parse_steps(line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return []


def read_tail(path: Path, size: int = TAIL_BYTES) -> list[StepLine]:
    """The last steps of a metrics file; empty before the first."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - size)
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return []
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return parse_steps(lines[1:] if start else lines)  # the first one is cut off where the tail begins


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def steps_per_second(steps: list[StepLine]) -> float | None:
    """The rate over the last steps of the newest link: another link's steps have its start-up between them."""
    if not steps:
        return None
    recent = [line for line in steps if line.link == steps[-1].link][-RATE_STEPS:]
    elapsed = recent[-1].time - recent[0].time
    if len(recent) > 1 and elapsed > 0:
        return (recent[-1].step - recent[0].step) / elapsed
    return 1 / recent[-1].step_seconds if recent[-1].step_seconds > 0 else None
