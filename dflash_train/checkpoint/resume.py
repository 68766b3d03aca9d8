"""Saving and loading everything that a run needs to go on as if it had never stopped.

Model and optimizer go through torch.distributed.checkpoint (sharded, any world size). The rest is a few numbers in
trainer_state.json: the optimizer step is at once the position in the data and in every random sequence, since both are
functions of (seed, step, global row), and the learning rate is a function of the step.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from dflash_train.checkpoint.layout import MANIFEST, Manifest, TensorFact, step_folder
from dflash_train.engine.processes import Processes
from dflash_train.errors import CheckpointError

STATE = "trainer_state.json"


@dataclass(frozen=True)
class TrainerState:
    """What must be the same for a run to go on: checked field by field at a resume.

    step: optimizer steps done. learning_rate: of the last step. horizon: of the schedule. trainable: parameter names.
    """

    step: int
    seed: int
    batch_size: int
    data_revision: str
    learning_rate: float
    schedule: str
    horizon: int
    trainable: list[str]


def save(
    run_dir: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    target_fingerprint: str | None,
    config_sha256: str,
    processes: Processes,
) -> Path:
    """Write checkpoints/step=N on all ranks; rank zero's manifest comes last. Returns the folder.

    A complete checkpoint of the same step is left as it is; what a torn save left behind is removed first.
    """
    folder = step_folder(run_dir, state.step)
    if processes.from_zero(int((folder / MANIFEST).is_file())):
        return folder
    if processes.is_zero:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    processes.wait()
    tree = _tree(module, optimizer)
    dcp.save(tree, checkpoint_id=folder)
    if processes.is_zero:
        (folder / STATE).write_text(json.dumps(asdict(state), indent=1), "utf-8")
        files = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
        tensors = {name: TensorFact(str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in _tensors(tree)}
        Manifest(1, state.step, time.time(), target_fingerprint, config_sha256, files, tensors).write(folder)
    processes.wait()
    return folder


def load(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    expected: TrainerState,
    target_fingerprint: str | None,
) -> TrainerState:
    """Load `folder` into module and optimizer. Raises CheckpointError where it is not this run's to go on from."""
    manifest = Manifest.read(folder)
    state = TrainerState(**json.loads((folder / STATE).read_text("utf-8")))
    if manifest.target_fingerprint != target_fingerprint:
        raise CheckpointError(
            f"{folder}: trained against the target {manifest.target_fingerprint}, this one is {target_fingerprint}"
        )
    for name in ("seed", "batch_size", "data_revision", "schedule", "horizon", "trainable"):
        saved, now = getattr(state, name), getattr(expected, name)
        if saved != now:
            raise CheckpointError(f"{folder}: saved with {name} {saved}, this run has {now}; fork instead of resuming")
    tree = _tree(module, optimizer)
    dcp.load(tree, checkpoint_id=folder)
    set_state_dict(module, optimizer, model_state_dict=tree["model"], optim_state_dict=tree["optimizer"])
    return state


def load_model(folder: Path) -> dict[str, Tensor]:
    """The model's tensors of a checkpoint, whole, on the CPU, by name; needs no process group."""
    manifest = Manifest.read(folder)
    prefix = "model."
    template = {
        name.removeprefix(prefix): torch.empty(fact.shape, dtype=getattr(torch, fact.dtype))
        for name, fact in manifest.tensors.items()
        if name.startswith(prefix)
    }
    tree = {"model": template}
    dcp.load(tree, checkpoint_id=folder, no_dist=True)
    return tree["model"]


def _tree(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model, optim = get_state_dict(module, optimizer)
    return {"model": model, "optimizer": optim}


def _tensors(tree: Any, prefix: str = "") -> list[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        return [(prefix.removesuffix("."), tree)]
    if isinstance(tree, dict):
        return [found for key, value in tree.items() for found in _tensors(value, f"{prefix}{key}.")]
    return []
