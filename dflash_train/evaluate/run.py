"""What the draft of a run is worth: its exported step decodes the run's validation sets. Accepted steps only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dflash_train.checkpoint.layout import accepted_step, accepted_steps
from dflash_train.config import Precision
from dflash_train.data.manifest import open_manifest
from dflash_train.errors import ConfigError, DataError, TargetError
from dflash_train.evaluate.acceptance import evaluate_set
from dflash_train.evaluate.report import Evaluation, write_evaluation
from dflash_train.export.run import load_exported, pinned_target, run_config
from dflash_train.observe.metrics_file import trained_steps


def evaluate_run(
    run_dir: Path,
    step: int | None,
    precision: Precision,
    limit: int | None,
    progress: Callable[[str, int], Callable[[], None]],
) -> Evaluation:
    """Decode the config's validation sets with the exported draft; writes <run>/evaluations/step=N.json.

    progress(what, rows) returns what is called after each row. Everything that can be refused is refused before
    the first row is decoded: NotAcceptedError, ConfigError, DataError, ExportError, TargetError.
    """
    config = run_config(run_dir)
    if not config.validation.sets:
        raise ConfigError(f"{run_dir.name}: validation.sets is empty: there is nothing to decode", "validation.sets")
    number = accepted_step(run_dir, step)
    steps = trained_steps(run_dir / "metrics.jsonl")
    before = [s for s in steps if s <= number]
    if not before:
        raise DataError(f"{run_dir / 'metrics.jsonl'}: no step up to {number}")
    draft = load_exported(run_dir, number, precision)
    manifests = {name: open_manifest(Path(path)) for name, path in config.validation.sets.items()}
    loaded = pinned_target(config, precision)
    if loaded.prompt is None:
        raise TargetError(f"{config.target.path} is a text LLM: drafts are measured on speech here")
    results = []
    for name, manifest in manifests.items():
        seen = progress(f"decoding {name}", len(manifest) if limit is None else min(limit, len(manifest)))
        results.append(evaluate_set(name, manifest, loaded.prompt, loaded.target, draft, limit, seen))
    evaluation = Evaluation(
        run=run_dir.name,
        step=number,
        precision=precision,
        block_size=draft.shape.block_size,
        first_loss=steps[min(steps)]["loss"],
        last_loss=steps[max(before)]["loss"],
        links=len({line["link"] for line in steps.values()}),
        accepted=tuple(accepted_steps(run_dir)),
        sets=tuple(results),
    )
    write_evaluation(run_dir, evaluation)
    return evaluation
