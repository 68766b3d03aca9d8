"""What an evaluation came to, and the file that keeps it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_train.config import Precision
from dflash_train.evaluate.acceptance import SetResult


@dataclass(frozen=True)
class Evaluation:
    """What was measured of one exported step, and under which settings."""

    run: str
    step: int
    precision: Precision
    block_size: int
    first_loss: float
    last_loss: float
    links: int
    accepted: tuple[int, ...]
    sets: tuple[SetResult, ...]

    @property
    def identical(self) -> bool:
        """Did every row come out the same with and without the draft?"""
        return not any(result.divergences for result in self.sets)


def write_evaluation(run_dir: Path, evaluation: Evaluation) -> Path:
    """<run>/evaluations/step=N.json, whole or not at all."""
    path = run_dir / "evaluations" / f"step={evaluation.step:08d}.json"
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(evaluation_json(evaluation), indent=2) + "\n", "utf-8")
    temporary.rename(path)
    return path


def evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    """What the file and `--json` hold; the counters are given, so that results can be summed, not averaged."""
    return {
        "version": 1,
        "time": time.time(),
        "run": evaluation.run,
        "step": evaluation.step,
        "precision": evaluation.precision.value,
        "block_size": evaluation.block_size,
        "proposed_per_round": evaluation.block_size - 1,
        "first_loss": evaluation.first_loss,
        "last_loss": evaluation.last_loss,
        "links": evaluation.links,
        "accepted_steps": list(evaluation.accepted),
        "identical": evaluation.identical,
        "sets": {result.name: set_json(result) for result in evaluation.sets},
    }


def set_json(result: SetResult) -> dict[str, Any]:
    """One set's numbers."""
    counters, errors = result.counters, result.errors
    return {
        "utterances": result.utterances,
        "tokens": result.tokens,
        "truncated": result.truncated,
        "wer": errors.rate,
        "words": errors.words,
        "insertions": errors.insertions,
        "deletions": errors.deletions,
        "substitutions": errors.substitutions,
        "empty_outputs": errors.empty,
        "rounds": counters.rounds,
        "draft_tokens": counters.draft_tokens,
        "accepted": counters.accepted,
        "accepted_by_slot": list(counters.accepted_by_slot),
        "proposed_by_slot": list(counters.proposed_by_slot),
        "mal": counters.mal,
        "tokens_per_second_alone": result.tokens_per_second_alone,
        "tokens_per_second_with_draft": result.tokens_per_second_with_draft,
        "divergences": [{"id": d.id, "position": d.position, "margin": d.margin} for d in result.divergences],
    }
