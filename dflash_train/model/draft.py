"""The DFlash and DFlash2 draft (specification 1 and 2).

    taps [B,S,T*H] --fc--> --hidden_norm--> context features c [B,S,H]       computed once, read by every layer
    block ids [anchor, mask x P] --target embedding--> h [B,N*bs,H]           the block stream, the only one updated
    h = layer(h, c) ...  --norm--> hidden [B,N*bs,H]                          the target's head turns it into logits

No embedding, no head and no position table of its own. The state_dict has exactly the keys that servers expect.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dflash_train.config import Variant
from dflash_train.model.layer import DraftLayer, KeyValue
from dflash_train.model.ops import TORCH_OPS, LayerOps
from dflash_train.model.rope import Rope
from dflash_train.model.selector import CandidateSelector
from dflash_train.model.shape import DraftShape


class DraftModel(nn.Module):
    """A fresh draft has uninitialised conv and selector tensors until init.initialise(model, seed)."""

    def __init__(self, shape: DraftShape, ops: LayerOps = TORCH_OPS) -> None:
        super().__init__()
        self.shape = shape
        self.rope = Rope(shape.rope_parameters, shape.head_dim, shape.max_position_embeddings)
        self.fc = ops.linear(len(shape.target_layer_ids) * shape.hidden_size, shape.hidden_size)
        self.hidden_norm = ops.rms_norm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(shape, ops) for _ in range(shape.num_hidden_layers))
        self.norm = ops.rms_norm(shape.hidden_size, shape.rms_norm_eps)
        self.candidate_selector = None
        if shape.variant is Variant.dflash2:
            self.candidate_selector = CandidateSelector(shape.hidden_size, shape.vocab_size, shape.selector_rank)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.parameters()).dtype

    def forward(
        self, taps: Tensor, context_positions: Tensor, stream: Tensor, block_positions: Tensor, mask: Tensor
    ) -> Tensor:
        """The training pass over all blocks at once.

        taps: [B, S, T*H]; context_positions: int64 [B, S]; stream: embedded block ids [B, N*bs, H];
        block_positions: int64 [B, N*bs]; mask: bool [B, 1, N*bs, S + N*bs] -> final-normed hidden [B, N*bs, H].
        """
        context = self.context(taps, context_positions)
        return self.propose(context, stream, block_positions, mask, self.shape.block_size)

    def context(self, taps: Tensor, positions: Tensor) -> list[KeyValue]:
        """Keys and values of the context for each layer; taps: [B, S, T*H], positions: int64 [B, S]."""
        features = self.hidden_norm(self.fc(taps))
        table = self.rope.table(positions)
        return [layer.self_attn.key_value(features, table) for layer in self.layers]  # type: ignore[union-attr,operator]

    def propose(
        self, context: list[KeyValue], stream: Tensor, positions: Tensor, mask: Tensor | None, block_size: int
    ) -> Tensor:
        """The block stream [B, Q, H] through all layers, each with its context -> final-normed hidden [B, Q, H]."""
        table = self.rope.table(positions)
        for layer, key_value in zip(self.layers, context, strict=True):
            stream = layer(stream, table, key_value, mask, block_size)
        return self.norm(stream)
