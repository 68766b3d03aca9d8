"""Transformer Engine's layers where they can run, else their torch twins. The only module that imports it.

They are for bfloat16 on a GPU. In float32 Transformer Engine multiplies with ten bits of mantissa (TF32), which is not
what `draft.precision: float32` promises, so float32 stays with torch.
"""

from __future__ import annotations

import importlib.util
import logging

import torch
from torch import nn

from dflash_train.config import Precision
from dflash_train.model.ops import TORCH_OPS, LayerOps

log = logging.getLogger(__name__)


def choose_ops(device: torch.device, precision: Precision) -> LayerOps:
    """The layers of a draft on `device` whose forward pass runs in `precision`.

    An installation that is there and does not load is named in the log, since it costs speed in silence otherwise.
    """
    if device.type != "cuda" or precision is not Precision.bfloat16:
        return TORCH_OPS
    if importlib.util.find_spec("transformer_engine") is None:
        return TORCH_OPS
    try:
        return transformer_engine_ops(device)
    except (ImportError, OSError, RuntimeError) as error:  # of another torch, another CUDA, or half installed
        log.warning("Transformer Engine is installed and does not load (%s): torch's layers are used", error)
        return TORCH_OPS


def transformer_engine_ops(device: torch.device) -> LayerOps:
    """Transformer Engine's layers, fp32 weights on `device`. Raises ImportError or OSError where it does not load."""
    import transformer_engine.pytorch as te

    def linear(in_features: int, out_features: int) -> nn.Module:
        return without_extra_state(te.Linear)(in_features, out_features, bias=False, device=device)

    def rms_norm(size: int, eps: float) -> nn.Module:
        return without_extra_state(te.RMSNorm)(size, eps=eps, device=device)

    return LayerOps(f"Transformer Engine {te.__version__}" if hasattr(te, "__version__") else "Transformer Engine",
                    linear, rms_norm)  # fmt: skip


def without_extra_state(layer: type[nn.Module]) -> type[nn.Module]:
    """The layer without the `_extra_state` that it adds to a state_dict: it holds FP8 scales, and there is no FP8 here.

    torch asks for it only where a class overrides the two methods, so they are given back to nn.Module.
    """
    plain = {"get_extra_state": nn.Module.get_extra_state, "set_extra_state": nn.Module.set_extra_state}
    return type(layer.__name__, (layer,), plain)
