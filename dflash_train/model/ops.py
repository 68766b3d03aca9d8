"""The layers that a draft is made of, in sets: one set is chosen when a draft is built, by engine/ops_te.py.

Both sets have the same state_dict (`weight` and nothing else), so a checkpoint or an export does not tell which of them
made it, and one may go on where the other stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class LayerOps:
    """name: for the log. linear(in, out): without bias, weight [out, in]. rms_norm(size, eps): weight [size]."""

    name: str
    linear: Callable[[int, int], nn.Module]
    rms_norm: Callable[[int, float], nn.Module]


class RmsNorm(nn.Module):
    """x / rms(x) * weight; statistics in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


def linear(in_features: int, out_features: int) -> nn.Linear:
    """Without a bias, as every projection of a draft is."""
    return nn.Linear(in_features, out_features, bias=False)


TORCH_OPS = LayerOps("torch", linear, RmsNorm)
