"""From a run directory to what its draft is worth: export, reload, decode, report. Accepted steps only."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_train import config_tree
from dflash_train.checkpoint.layout import Manifest as CheckpointManifest
from dflash_train.checkpoint.layout import accepted_step, complete_steps, step_folder
from dflash_train.checkpoint.resume import load_model
from dflash_train.config import Precision, Recipe, TrainConfig
from dflash_train.data.manifest import open_manifest
from dflash_train.engine.parallel import DTYPES
from dflash_train.errors import CheckpointError, ConfigError, ExportError
from dflash_train.evaluate.acceptance import SetResult, evaluate_set
from dflash_train.export.folder import load_export, read_meta, write_export
from dflash_train.model.draft import DraftModel
from dflash_train.recipes.draft import draft_shape
from dflash_train.resolve import fingerprint
from dflash_train.target.load import LoadedTarget, load_target

log = logging.getLogger(__name__)


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


def run_config(run_dir: Path) -> TrainConfig:
    """The resolved config of a run that trains a draft. Raises ConfigError."""
    config = config_tree.parse(config_tree.load_yaml(run_dir / "resolved.yaml"))
    if config.recipe is not Recipe.draft:
        raise ConfigError(f"{run_dir.name}: recipe {config.recipe.value} trains no draft")
    return config


def pinned_target(config: TrainConfig, precision: Precision) -> LoadedTarget:
    """The run's own target. Raises CheckpointError when its files have changed since."""
    seen = fingerprint(Path(config.target.path))
    if seen != config.target.fingerprint:
        raise CheckpointError(
            f"{config.target.path}: is {seen} now, the draft was trained on {config.target.fingerprint}"
        )
    return load_target(Path(config.target.path), DTYPES[precision])


def export_step(run_dir: Path, step: int | None) -> Path:
    """Export an accepted checkpoint (None: the newest) to <run>/export/step=N; returns the folder.

    Raises NotAcceptedError, CheckpointError or ExportError. An export that is there already is reloaded and kept.
    """
    config = run_config(run_dir)
    number = accepted_step(run_dir, step)
    folder = run_dir / "export" / step_folder(run_dir, number).name
    if folder.exists():
        load_export(folder, DTYPES[Precision.float32])
        return folder
    checkpoint = step_folder(run_dir, number)
    manifest = CheckpointManifest.read(checkpoint)
    if manifest.target_fingerprint != config.target.fingerprint:
        raise CheckpointError(f"{checkpoint}: trained against {manifest.target_fingerprint}, not this run's target")
    target = pinned_target(config, config.target.precision).target
    meta = {
        "run": run_dir.name,
        "step": number,
        "target_path": config.target.path,
        "target_fingerprint": config.target.fingerprint,
        "label_source": config.objective.label_source.value,
        "loss_decay_gamma": config.objective.loss_decay_gamma,
        "block_size": config.draft.block_size,
        "config_sha256": manifest.config_sha256,
    }
    write_export(folder, draft_shape(config, target), load_model(checkpoint), meta)
    return folder


def load_exported(run_dir: Path, step: int | None, precision: Precision) -> tuple[DraftModel, int]:
    """The exported draft of an accepted step, in `precision`, and the step. Raises ExportError where there is none."""
    number = accepted_step(run_dir, step)
    folder = run_dir / "export" / step_folder(run_dir, number).name
    if not folder.is_dir():
        raise ExportError(f"{folder}: not exported yet: `dflash-train export {run_dir} --step {number}`")
    if read_meta(folder).get("step") != number:
        raise ExportError(f"{folder}: stands for step {read_meta(folder).get('step')}, not {number}")
    return load_export(folder, DTYPES[precision]), number


def evaluate_run(
    run_dir: Path,
    step: int | None,
    precision: Precision,
    limit: int | None,
    progress: Callable[[str, int], Callable[[], None]],
) -> Evaluation:
    """Decode the config's validation sets with the exported draft; writes <run>/evaluations/step=N.json.

    progress(set name, rows) returns what is called after each row.
    """
    config = run_config(run_dir)
    loaded = pinned_target(config, precision)
    draft, number = load_exported(run_dir, step, precision)
    assert loaded.prompt is not None
    results = []
    for name, path in config.validation.sets.items():
        manifest = open_manifest(Path(path))
        seen = progress(name, len(manifest) if limit is None else min(limit, len(manifest)))
        results.append(evaluate_set(name, manifest, loaded.prompt, loaded.target, draft, limit, seen))
    steps = trained_steps(run_dir)
    evaluation = Evaluation(
        run=run_dir.name,
        step=number,
        precision=precision,
        block_size=draft.shape.block_size,
        first_loss=steps[min(steps)]["loss"],
        last_loss=steps[max(s for s in steps if s <= number)]["loss"],
        links=len({line["link"] for line in steps.values()}),
        accepted=tuple(s for s in complete_steps(run_dir) if (run_dir / "accepted" / f"step={s:08d}.json").is_file()),
        sets=tuple(results),
    )
    write_evaluation(run_dir, evaluation)
    return evaluation


def trained_steps(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Metrics lines by step, those of skipped steps left out; the last line of a step wins."""
    lines = (json.loads(line) for line in (run_dir / "metrics.jsonl").read_text("utf-8").splitlines())
    return {line["step"]: line for line in lines if line.get("loss") is not None}


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
