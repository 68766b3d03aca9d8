"""Who sees whom: one rule, from which every form of the mask is derived (specification 3.4).

A slot of block b sees a context key at position p iff p < anchor(b): the anchor's own feature is not available, since
at decoding the target has not processed it yet. It sees a block key iff that is of its own block, in both directions.
The rule speaks of positions, never of block numbers, so that overlapping blocks leak nothing. Right padding lies after
every anchor and is hidden by the same rule; a block that is not kept (anchor 0) sees itself alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def context_visible(anchor: Tensor, position: Tensor) -> Tensor:
    """The rule for context keys; any broadcastable shapes."""
    return position < anchor


def block_visible(block: Tensor, key_block: Tensor) -> Tensor:
    """The rule for block keys; any broadcastable shapes."""
    return block == key_block


def dense_mask(anchors: Tensor, length: int, block_size: int) -> Tensor:
    """bool [B, 1, N*bs, length + N*bs]; anchors: int64 [B, N]; keys are the context, then all blocks."""
    rows, blocks = anchors.shape
    of_slot = anchors.repeat_interleave(block_size, dim=1)
    context = context_visible(of_slot[..., None], torch.arange(length, device=anchors.device))
    number = torch.arange(blocks, device=anchors.device).repeat_interleave(block_size)
    block = block_visible(number[:, None], number[None, :]).expand(rows, -1, -1)
    return torch.cat([context, block], dim=2)[:, None]
