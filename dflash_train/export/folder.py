"""Writing an export and loading it strictly.

The folder appears whole under its name or not at all: it is written beside it, checked, and renamed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_train.errors import ExportError
from dflash_train.export.config_json import from_config_json, to_config_json
from dflash_train.model.draft import DraftModel
from dflash_train.model.shape import DraftShape

CONFIG, WEIGHTS, META = "config.json", "model.safetensors", "dflash_train_meta.json"


def write_export(folder: Path, shape: DraftShape, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> DraftModel:
    """Write `tensors` as bf16 with their config, reload them strictly, and rename. Returns the reloaded draft (bf16).

    Raises ExportError when the reloaded draft is not the one that was written, or the folder exists.
    """
    if folder.exists():
        raise ExportError(f"{folder} exists: an export is never overwritten; remove it first")
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    saved = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(saved, temporary / WEIGHTS, metadata={"format": "pt"})
    _write_json(temporary / CONFIG, to_config_json(shape))
    _write_json(temporary / META, meta)
    draft = load_export(temporary, torch.bfloat16)
    if draft.shape != shape:
        raise ExportError(f"{folder}: config.json reads back as {draft.shape}, {shape} was written")
    temporary.rename(folder)
    return draft


def load_export(folder: Path, dtype: torch.dtype) -> DraftModel:
    """The draft of an export folder, every tensor accounted for. Raises ExportError.

    Servers do not look for missing tensors (they stay uninitialised memory), so this does.
    """
    try:
        shape = from_config_json(json.loads((folder / CONFIG).read_text("utf-8")))
        tensors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ExportError(f"{folder}: not an export: {error}") from None
    draft = DraftModel(shape)
    wanted = {name: tuple(p.shape) for name, p in draft.state_dict().items()}
    found = {name: tuple(t.shape) for name, t in tensors.items()}
    if wanted != found:
        missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
        shapes = sorted(n for n in wanted.keys() & found.keys() if wanted[n] != found[n])
        raise ExportError(f"{folder}: tensors missing {missing}, unexpected {extra}, of another shape {shapes}")
    broken = sorted(name for name, tensor in tensors.items() if not torch.isfinite(tensor).all())
    if broken:
        raise ExportError(f"{folder}: not finite: {broken}")
    if not tensors["fc.weight"].any():
        raise ExportError(f"{folder}: fc.weight is all zero: the draft reads no context")
    draft.load_state_dict(tensors)
    return draft.to(dtype).eval().requires_grad_(False)


def read_meta(folder: Path) -> dict[str, Any]:
    """What the export was made from. Raises ExportError."""
    try:
        meta = json.loads((folder / META).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{folder}: no readable {META} ({error})") from None
    return dict(meta)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
