"""From a run directory to the draft that a server loads, and back. Accepted steps only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash_train import config_tree
from dflash_train.checkpoint.layout import Manifest, accepted_step, step_folder
from dflash_train.checkpoint.resume import load_model
from dflash_train.config import Precision, Recipe, TrainConfig
from dflash_train.engine.parallel import DTYPES
from dflash_train.errors import CheckpointError, ConfigError, ExportError, TargetError
from dflash_train.export.folder import load_export, read_meta, write_export
from dflash_train.model.draft import DraftModel
from dflash_train.recipes.draft import draft_shape
from dflash_train.resolve import fingerprint
from dflash_train.target.load import LoadedTarget, load_target


def run_config(run_dir: Path) -> TrainConfig:
    """The resolved config of a run that trains a draft. Raises ConfigError."""
    config = config_tree.parse(config_tree.load_yaml(run_dir / "resolved.yaml"))
    if config.recipe is not Recipe.draft:
        raise ConfigError(f"{run_dir.name}: recipe {config.recipe.value} trains no draft")
    return config


def pinned_target(config: TrainConfig, precision: Precision) -> LoadedTarget:
    """The run's own target. Raises TargetError where its folder is gone or has changed since."""
    path = Path(config.target.path)
    if not path.is_dir():
        raise TargetError(f"{path}: the target that the draft was trained on is not there any more")
    seen = fingerprint(path)
    if seen != config.target.fingerprint:
        raise TargetError(f"{path}: is {seen} now, the draft was trained on {config.target.fingerprint}")
    return load_target(path, DTYPES[precision])


def export_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "export" / step_folder(run_dir, step).name


def export_step(run_dir: Path, step: int | None) -> Path:
    """Export an accepted checkpoint (None: the newest) to <run>/export/step=N; returns the folder.

    An export that is there already is reloaded strictly and kept.
    Raises NotAcceptedError, CheckpointError, TargetError or ExportError.
    """
    config = run_config(run_dir)
    number = accepted_step(run_dir, step)
    folder = export_folder(run_dir, number)
    if folder.exists():
        load_exported(run_dir, number, Precision.float32)
        return folder
    checkpoint = step_folder(run_dir, number)
    manifest = Manifest.read(checkpoint)
    if manifest.target_fingerprint != config.target.fingerprint:
        raise CheckpointError(f"{checkpoint}: trained against {manifest.target_fingerprint}, not this run's target")
    target = pinned_target(config, config.target.precision).target
    write_export(folder, draft_shape(config, target), load_model(checkpoint), _meta(run_dir, config, manifest))
    return folder


def load_exported(run_dir: Path, step: int, precision: Precision) -> DraftModel:
    """The exported draft of a step, in `precision`. Raises ExportError where there is none, or another run's."""
    folder = export_folder(run_dir, step)
    if not folder.is_dir():
        raise ExportError(f"{folder}: not exported yet: `dflash-train export {run_dir} --step {step}`")
    meta = read_meta(folder)
    for name, wanted in (("run", run_dir.name), ("step", step)):
        if meta.get(name) != wanted:
            raise ExportError(f"{folder}: is of {name} {meta.get(name)}, not {wanted}: remove it and export again")
    return load_export(folder, DTYPES[precision])


def _meta(run_dir: Path, config: TrainConfig, manifest: Manifest) -> dict[str, Any]:
    """What the export was made from."""
    return {
        "run": run_dir.name,
        "step": manifest.step,
        "target_path": config.target.path,
        "target_fingerprint": config.target.fingerprint,
        "label_source": config.objective.label_source.value,
        "loss_decay_gamma": config.objective.loss_decay_gamma,
        "block_size": config.draft.block_size,
        "config_sha256": manifest.config_sha256,
    }
