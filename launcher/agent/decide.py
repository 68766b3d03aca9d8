"""Pure decisions of a link: whether it trains, and what its end means; and what they read from the run directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

EXIT_NOT_TRAINED = 75  # no progress, locked, requeued: the link did not train, and that is not as it should be


@dataclass(frozen=True)
class Verdict:
    """Why a link does not train: the outcome's word, a reason for a person, the exit code."""

    outcome: str
    detail: str
    exit_code: int


@dataclass(frozen=True)
class Facts:
    """All that the decision at the start of a link looks at."""

    restart_count: int
    stop: bool
    step: int  # of the newest complete checkpoint; 0 without one
    target_step: int
    trained: tuple[tuple[int, int], ...]  # (link, step at its start) of the links before that started a trainer
    snapshot_found: str  # the marker's content; empty when it is missing
    snapshot_wanted: str


def decide(facts: Facts) -> Verdict | None:
    """The verdict on a link that is not to train, or None."""
    if facts.restart_count > 0:
        return Verdict("crashed", "requeued by the site; a link never runs twice", EXIT_NOT_TRAINED)
    if facts.step >= facts.target_step:
        return Verdict("not_needed", f"step {facts.step} reaches the target {facts.target_step}", 0)
    if facts.stop:
        return Verdict("stopped", "found the stop file", 0)
    if facts.snapshot_found != facts.snapshot_wanted:
        found = facts.snapshot_found or "nothing"
        return Verdict("crashed", f"the snapshot is not the one launched: {found} found", EXIT_NOT_TRAINED)
    last_two = sorted(facts.trained)[-2:]
    if len(last_two) == 2 and all(start == facts.step for _, start in last_two):
        links = " and ".join(str(link) for link, _ in last_two)
        return Verdict(
            "no_progress", f"links {links} both began at step {facts.step} and gained none", EXIT_NOT_TRAINED
        )
    return None


def classify(code: int, step: int, target_step: int, stop: bool, told_to_end: bool, at_limit: bool) -> str:
    """The outcome of a link whose trainer ended with `code`; the checkpoints say more than the code."""
    if step >= target_step:
        return "finished"
    if code == 0:
        return "stopped" if stop else "handed_over"
    if stop and (code < 0 or code > 128):  # ended by a signal before it could save
        return "stopped"
    if told_to_end:  # SIGTERM came: the limit or a cancel ended it, not a fault of its own
        return "timed_out" if at_limit else "cancelled"
    return "crashed"


def newest_checkpoint(run: Path) -> tuple[int, str]:
    """(step, folder name) of the newest checkpoint with a manifest that can be read; (0, "") without one."""
    best = (0, "")
    for manifest in run.glob("checkpoints/step=*/manifest.json"):
        try:
            step = int(json.loads(manifest.read_text())["step"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if step > best[0]:
            best = (step, manifest.parent.name)
    return best


def read_trained(run: Path, link: int) -> tuple[tuple[int, int], ...]:
    """(link, step at start) of each earlier link that started its trainer, from the events; torn lines are skipped."""
    starts: dict[int, int] = {}
    for path in run.glob("events/*.jsonl"):
        for line in path.read_bytes().splitlines():
            try:
                event = json.loads(line)
                if event["kind"] == "train" and int(event["link"]) < link:
                    starts[int(event["link"])] = int(event["step"])
            except (ValueError, KeyError, TypeError):
                continue
    return tuple(sorted(starts.items()))
