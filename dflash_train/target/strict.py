"""Loading a Hugging Face folder strictly: what is missing, surplus or of another shape is an error, never a warning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from dflash_train.errors import TargetError

WHAT_FAILS = {
    "missing_keys": "tensors that the model needs are missing",
    "unexpected_keys": "tensors that the model does not have",
    "mismatched_keys": "tensors of another shape than the model's",
    "error_msgs": "tensors that could not be read",
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises TargetError where the file is missing or is no JSON object."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise TargetError(f"{path} does not exist: is this the target's folder?") from None
    except (OSError, ValueError) as error:
        raise TargetError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise TargetError(f"{path} must hold one JSON object")
    return value


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """transformers draws bars of its own for every file; ours is the only program that talks here."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load_pretrained(model_class: Any, folder: Path, dtype: torch.dtype) -> Any:
    """`model_class.from_pretrained` on a local folder, in evaluation mode.

    Raises TargetError if any tensor is missing, surplus or mis-shaped, or if the folder cannot be read at all.
    """
    read_json(folder / "config.json")
    try:
        with no_progress_bars():
            model, info = model_class.from_pretrained(
                folder, dtype=dtype, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise TargetError(f"{folder} cannot be loaded: {str(error).strip().splitlines()[0]}") from None
    faults = info if isinstance(info, dict) else vars(info)
    for key, meaning in WHAT_FAILS.items():
        found = sorted(str(name[0] if isinstance(name, tuple) else name) for name in faults.get(key) or ())
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise TargetError(f"{folder}: {meaning}: {', '.join(found[:3])}{more} (targets are loaded whole)")
    return model.eval()


def load_causal_lm(folder: Path, dtype: torch.dtype) -> Any:
    """The causal LM of a folder, strictly loaded."""
    return load_pretrained(AutoModelForCausalLM, folder, dtype)


def load_tokenizer(folder: Path) -> Any | None:
    """The folder's tokenizer, or None if the folder has none. Raises TargetError if it has one that cannot be read."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TargetError(f"{folder}: the tokenizer cannot be loaded: {str(error).strip().splitlines()[0]}") from None
    for key in ("is_local", "local_files_only"):  # how it was loaded; saved with it otherwise
        tokenizer.init_kwargs.pop(key, None)
    return tokenizer
