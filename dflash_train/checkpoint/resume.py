"""Saving and loading everything that a run needs to go on as if it had never stopped.

Model and optimizer go through torch.distributed.checkpoint (sharded, any world size). The rest is a few numbers in
trainer_state.json: the optimizer step is at once the position in the data and in every random sequence, since both are
functions of (seed, step, global row), and the learning rate is a function of the step.
"""

from __future__ import annotations

import functools
import json
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from dflash_train.checkpoint.layout import Manifest, TensorFact, fault_of, step_folder
from dflash_train.config import TrainConfig
from dflash_train.config_tree import leaf_keys, to_tree
from dflash_train.engine.processes import Processes
from dflash_train.errors import CheckpointError

STATE = "trainer_state.json"


# Keys that may change between the links of a run, since they do not decide what is learnt: where files lie (their
# contents are pinned by fingerprint and revision), how rows are spread and loaded, and what is looked at on the way.
# Everything else must be what it was when the checkpoint was saved.
FREE_KEYS = frozenset(
    {
        "max_steps", "target.path", "salm.tokenizer", "data.train", "data.accumulation", "data.num_workers",
        "validation.interval", "validation.max_batches", "validation.sets", "checkpoint.interval",
    }
)  # fmt: skip


@dataclass(frozen=True)
class TrainerState:
    """What is saved beside the tensors, in trainer_state.json.

    step: optimizer steps done. learning_rate: of the last step. settings: dotted config key -> value, FREE_KEYS left
    out. trainable: parameter names.
    """

    step: int
    learning_rate: float
    settings: Mapping[str, Any]
    trainable: list[str]


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """The keys that a resume compares, with their values as JSON has them."""
    tree = to_tree(config)
    values = {key: functools.reduce(lambda node, part: node[part], key.split("."), tree) for key in leaf_keys()}
    return {key: value for key, value in values.items() if key not in FREE_KEYS}


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
    Raises CheckpointError where it cannot be written, and then there is no manifest.
    """
    folder = step_folder(run_dir, state.step)
    if processes.from_zero(int(fault_of(folder) is None)):
        return folder
    if processes.is_zero:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    processes.wait()
    tree = _tree(module, optimizer)
    with named_errors(f"{folder}: cannot be saved"):
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
    state = read_state(folder)
    if manifest.target_fingerprint != target_fingerprint:
        raise CheckpointError(
            f"{folder}: trained against the target {manifest.target_fingerprint}, this one is {target_fingerprint}"
        )
    for key in sorted(state.settings.keys() | expected.settings.keys()):
        saved, now = state.settings.get(key), expected.settings.get(key)
        if saved != now:
            raise CheckpointError(
                f"{folder}: saved with {key}: {saved}, the config says {now}; a run goes on as it began: start another"
            )
    if other := sorted(set(state.trainable) ^ set(expected.trainable)):
        raise CheckpointError(f"{folder}: another set of parameters is trained: {', '.join(other[:3])}, ...")
    tree = _tree(module, optimizer)
    with named_errors(f"{folder}: cannot be loaded into this run's draft and optimizer"):
        dcp.load(tree, checkpoint_id=folder)
    set_state_dict(module, optimizer, model_state_dict=tree["model"], optim_state_dict=tree["optimizer"])
    return state


def read_state(folder: Path) -> TrainerState:
    """The few numbers beside the tensors. Raises CheckpointError."""
    try:
        return TrainerState(**json.loads((folder / STATE).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder}: no readable {STATE} ({error})") from None


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """torch's CheckpointException, which holds the traceback of each rank, as one CheckpointError with the causes."""
    try:
        yield
    except CheckpointException as error:
        causes = sorted({f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values()})
        raise CheckpointError(f"{what}: {' '.join('; '.join(causes).split())}") from error


def load_model(folder: Path) -> dict[str, Tensor]:
    """The model's tensors of a checkpoint, whole, on the CPU, by name; needs no process group.

    Raises CheckpointError where the checkpoint is not complete.
    """
    if fault := fault_of(folder):
        raise CheckpointError(fault)
    manifest = Manifest.read(folder)
    prefix = "model."
    template = {
        name.removeprefix(prefix): torch.empty(fact.shape, dtype=getattr(torch, fact.dtype))
        for name, fact in manifest.tensors.items()
        if name.startswith(prefix)
    }
    tree = {"model": template}
    with warnings.catch_warnings(), named_errors(f"{folder}: cannot be loaded"):
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # a group is not wanted here
        dcp.load(tree, checkpoint_id=folder)
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
