"""Rotary positions, neox style (rotate_half over the whole head), tables in fp32 whatever the model's dtype.

Source: specification 1.6. The inverse frequencies are not a buffer: `model.to(bfloat16)` would round them, and they
must not be in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


class Rope:
    """cos and sin of absolute positions."""

    def __init__(self, rope_parameters: Mapping[str, Any], head_dim: int, max_position_embeddings: int) -> None:
        self.kind = str(rope_parameters.get("rope_type", "default"))
        theta = float(rope_parameters["rope_theta"])
        self.scale = 1.0
        if self.kind == "default":
            exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            self.inv_freq = 1.0 / theta**exponent
        else:
            config = Qwen3Config(
                head_dim=head_dim,
                max_position_embeddings=max_position_embeddings,
                rope_parameters=dict(rope_parameters),
            )
            self.inv_freq, self.scale = ROPE_INIT_FUNCTIONS[self.kind](config, torch.device("cpu"))

    def table(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions: int64 [B, S] -> cos, sin fp32 [B, 1, S, head_dim]."""
        angles = positions[:, None, :, None].float() * self.inv_freq.to(positions.device)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * self.scale, angles.sin() * self.scale


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """x: [B, heads, S, head_dim] turned by `table`; computed in fp32, returned in x's dtype."""
    cos, sin = table
    first, second = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
