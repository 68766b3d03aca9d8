"""metrics.jsonl: one line an optimizer step, appended by rank zero. The names and their order are a contract."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dflash_train.errors import DataError

NAMES = (
    "step",
    "link",
    "time",
    "loss",
    "base_loss",
    "selector_loss",
    "grad_norm",
    "lr",
    "step_seconds",
    "data_seconds",
    "tokens",
    "valid_blocks",
    "accept_len",
    "skipped",
    "skip_reason",
    "peak_bytes",
)
ADDED = ("accuracy", "candidate_recall")  # what this trainer adds, after the contract's own
VALIDATION_NAMES = ("step", "link", "time", "validation")


@dataclass(frozen=True)
class MetricsFile:
    """Appends whole lines, each with one write, so that a reader never sees half of one."""

    path: Path

    def step(self, values: Mapping[str, Any]) -> None:
        """`values` must have exactly the names of the contract and those added."""
        self._append(values, NAMES + ADDED)

    def validation(self, values: Mapping[str, Any]) -> None:
        self._append(values, VALIDATION_NAMES)

    def _append(self, values: Mapping[str, Any], names: tuple[str, ...]) -> None:
        if set(values) != set(names):
            raise KeyError(f"metrics line with {sorted(set(values) ^ set(names))} missing or unknown")
        line = json.dumps({name: values[name] for name in names}) + "\n"
        with self.path.open("a+b") as stream:
            stream.write(_end_of_line(stream) + line.encode())


def _end_of_line(stream: IO[bytes]) -> bytes:
    """What ends the half line that a killed process may have left, so that the next one is not spoilt by it."""
    size = stream.seek(0, os.SEEK_END)
    if size:
        stream.seek(size - 1)
    return b"" if not size or stream.read(1) == b"\n" else b"\n"


def trained_steps(path: Path) -> dict[int, dict[str, Any]]:
    """Lines by step; the last line of a step wins. Left out: skipped steps, validations, the half line of a killed
    process. Raises DataError where no step is left."""
    steps = {}
    for text in path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and line.get("loss") is not None:
            steps[int(line["step"])] = line
    if not steps:
        raise DataError(f"{path}: no step that was trained: is this the directory of a run that began?")
    return steps
