"""Pure decisions of a link: whether it trains, and what its end means; and what they read from the run directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

SAVE_SIGNAL_CODES = (-10, 138)  # SIGUSR1, as a process and as srun tell it
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


@dataclass(frozen=True)
class End:
    """How the trainer's processes ended."""

    code: int  # negative: by that signal. srun's 0 is no proof: it also says 0 when Slurm ended its step
    step: int  # of the newest complete checkpoint
    last_step: int  # in metrics.jsonl; 0 without one
    target_step: int
    stop: bool  # the stop file lies there
    terminated: bool  # SIGTERM came: the limit, a cancel or a lost node
    at_limit: bool  # the wall time was over, or nearly


def classify(end: End) -> str:
    """The outcome of a link that trained; the checkpoints say more than the exit code."""
    if end.step >= end.target_step:
        return "finished"
    if end.terminated and end.at_limit:
        return "timed_out"
    # The request to save can hit a trainer that has saved already, on its way out: no harm is done.
    good = end.code == 0 or (end.code in SAVE_SIGNAL_CODES and 0 < end.last_step <= end.step)
    if end.terminated and (not good or end.last_step > end.step):
        return "cancelled"
    if end.stop and (end.code <= 0 or end.code > 128):  # saved, or was told before it could train
        return "stopped"
    return "handed_over" if good else "crashed"


def last_metrics_step(run: Path) -> int:
    """The last step in metrics.jsonl; 0 before the first."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 65536))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, OverflowError):  # torn, or the first, which the tail cut off
            continue
    return 0


def newest_checkpoint(run: Path) -> tuple[int, str]:
    """(step, folder name) of the newest checkpoint with a manifest that can be read; (0, "") without one."""
    best = (0, "")
    for manifest in run.glob("checkpoints/step=*/manifest.json"):
        try:
            step = int(json.loads(manifest.read_text())["step"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
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
