"""One draft layer: a Qwen3 block whose attention also reads keys and values of the context (specification 1.5)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_train.config import Variant
from dflash_train.model.conv import BlockConv
from dflash_train.model.ops import LayerOps
from dflash_train.model.rope import rotate
from dflash_train.model.shape import DraftShape

KeyValue = tuple[Tensor, Tensor]  # keys (normed, rotated) and values, each [B, nkv, S, hd]


class DraftAttention(nn.Module):
    """Block queries over [context | block]; one k_proj, v_proj and k_norm serve both."""

    def __init__(self, shape: DraftShape, ops: LayerOps) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.q_proj = ops.linear(shape.hidden_size, self.heads * self.head_dim)
        self.k_proj = ops.linear(shape.hidden_size, self.kv_heads * self.head_dim)
        self.v_proj = ops.linear(shape.hidden_size, self.kv_heads * self.head_dim)
        self.o_proj = ops.linear(self.heads * self.head_dim, shape.hidden_size)
        self.q_norm = ops.rms_norm(self.head_dim, shape.rms_norm_eps)
        self.k_norm = ops.rms_norm(self.head_dim, shape.rms_norm_eps)

    def key_value(self, x: Tensor, table: tuple[Tensor, Tensor]) -> KeyValue:
        """x: context features or normed block stream [B, S, H] -> its keys and values. Values are not normed."""
        rows, length, _ = x.shape
        keys = self.k_norm(self.k_proj(x).view(rows, length, self.kv_heads, self.head_dim)).transpose(1, 2)
        values = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        return rotate(keys, table), values

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], context: KeyValue, mask: Tensor | None) -> Tensor:
        """x: [B, Q, H]; mask: bool [B, 1, Q, S+Q], True where a key is seen, None for all -> [B, Q, H]."""
        rows, length, _ = x.shape
        queries = self.q_norm(self.q_proj(x).view(rows, length, self.heads, self.head_dim)).transpose(1, 2)
        block_keys, block_values = self.key_value(x, table)
        keys = torch.cat([context[0], block_keys], dim=2)
        values = torch.cat([context[1], block_values], dim=2)
        seen = F.scaled_dot_product_attention(
            rotate(queries, table), keys, values, attn_mask=mask, enable_gqa=self.heads != self.kv_heads
        )
        return self.o_proj(seen.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int, ops: LayerOps) -> None:
        super().__init__()
        self.gate_proj = ops.linear(hidden_size, intermediate_size)
        self.up_proj = ops.linear(hidden_size, intermediate_size)
        self.down_proj = ops.linear(intermediate_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """Attention and MLP, each between the two sides of its convolution (DFlash2) or bare (DFlash)."""

    def __init__(self, shape: DraftShape, ops: LayerOps) -> None:
        super().__init__()
        self.input_layernorm = ops.rms_norm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = DraftAttention(shape, ops)
        self.post_attention_layernorm = ops.rms_norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape.hidden_size, shape.intermediate_size, ops)
        self.attention_conv, self.mlp_conv = None, None
        if shape.variant is Variant.dflash2:
            conv = (shape.hidden_size, shape.conv_kernel_size, shape.conv_group_size)
            self.attention_conv, self.mlp_conv = BlockConv(*conv), BlockConv(*conv)

    def forward(
        self, h: Tensor, table: tuple[Tensor, Tensor], context: KeyValue, mask: Tensor | None, block_size: int
    ) -> Tensor:
        """h: block stream [B, Q, H], Q a multiple of `block_size` -> [B, Q, H]."""

        def attend(x: Tensor) -> Tensor:
            return self.self_attn(x, table, context, mask)

        h = h + convolved(self.attention_conv, attend, self.input_layernorm(h), block_size)
        return h + convolved(self.mlp_conv, self.mlp, self.post_attention_layernorm(h), block_size)


def convolved(conv: BlockConv | None, sublayer: Callable[[Tensor], Tensor], x: Tensor, block_size: int) -> Tensor:
    """conv(1, sublayer(conv(0, x))), both sides' coefficients from x; just the sublayer where there is no conv."""
    if conv is None:
        return sublayer(x)
    coefficients = conv.coefficients(x, block_size)
    return conv(sublayer(conv(x, coefficients, side=0)), coefficients, side=1)
