"""One draft pass: P tokens after the newest committed one, from the context features known so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dflash_train.model.draft import DraftModel
from dflash_train.model.layer import KeyValue
from dflash_train.target.base import Target, argmax_tokens


@dataclass
class DraftCache:
    """Keys and values of the context, per layer. Those of a block are never kept, so nothing is ever cropped.

    Invariant at the start of a round: `length` is the position of the newest committed token, which has no feature yet.
    """

    layers: list[KeyValue] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.layers[0][0].shape[2] if self.layers else 0

    def append(self, new: list[KeyValue]) -> None:
        if not self.layers:
            self.layers = new
            return
        self.layers = [
            (torch.cat([keys, more[0]], dim=2), torch.cat([values, more[1]], dim=2))
            for (keys, values), more in zip(self.layers, new, strict=True)
        ]


def add_context(draft: DraftModel, cache: DraftCache, taps: Tensor) -> None:
    """Features of newly verified positions; taps: [1, n, T*H], in the order of the positions."""
    positions = torch.arange(cache.length, cache.length + taps.shape[1], device=taps.device)[None]
    cache.append(draft.context(taps.to(draft.dtype), positions))


def propose(draft: DraftModel, target: Target, cache: DraftCache, anchor: Tensor, slots: int) -> Tensor:
    """Greedy tokens of slots 1..slots, int64 [1, slots]; anchor: int64 [1], the newest committed token."""
    ids = torch.full((1, slots + 1), draft.shape.mask_token_id, device=anchor.device)
    ids[:, 0] = anchor
    positions = torch.arange(cache.length, cache.length + slots + 1, device=anchor.device)[None]
    stream = target.embed(ids).to(draft.dtype)
    hidden = draft.propose(cache.layers, stream, positions, mask=None, block_size=slots + 1)[:, 1:]
    logits = target.logits(hidden.to(target.dtype))
    if draft.candidate_selector is None:
        return argmax_tokens(logits, target.token_limit)
    return draft.candidate_selector.walk(hidden, logits[..., : target.token_limit], anchor, draft.shape.selector_top_k)
