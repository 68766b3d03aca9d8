"""metrics.jsonl: one line an optimizer step, appended by rank zero. The names and their order are a contract."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(line)
