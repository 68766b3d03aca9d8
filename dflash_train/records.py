"""The tensors that travel between the parts of the trainer, and the letters of their shapes.

    B rows of the micro-batch        S tokens of a row (right-padded)      H hidden size
    V rows of the vocabulary         L target layers                      T taps (target layers read)
    N anchors (blocks) of a row      bs block size                        P = bs - 1 predicted slots of a block
    k candidates of a slot           R rank of the selector                A audio samples of a row (16 kHz)

The letters are those of the DFlash specification.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One micro-batch, right-padded.

    input_ids: int64 [B, S]; where audio frames stand, and in the padding, the target's pad id.
    loss_mask: bool [B, S]; may the token at t be a label. Never shifted.
    token_mask: bool [B, S]; True on real positions (text and audio), False in the padding.
    audio_mask: bool [B, S]; True where an audio frame's embedding stands; all False for text.
    audio: float32 [B, A] samples at 16 kHz, zero-padded; None for text.
    audio_samples: int64 [B], samples of each row; None for text.
    rows: int64 [B]; global row number of each row in the step (randomness is a function of seed, step and this).
    ids: sample id of each row.
    document_ids: int64 [B, S], number of each position's document within its packed row, rising from 0 and -1 in the
    padding; None: a row is one document.
    """

    input_ids: Tensor
    loss_mask: Tensor
    token_mask: Tensor
    audio_mask: Tensor
    rows: Tensor
    ids: tuple[str, ...]
    audio: Tensor | None = None
    audio_samples: Tensor | None = None
    document_ids: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """The same batch with every tensor on `device`."""
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)

    def positions(self) -> Tensor:
        """int64 [B, S]: place of each position in its document, which is what rotary positions count."""
        places = torch.arange(self.input_ids.shape[1], device=self.input_ids.device).expand_as(self.input_ids)
        if self.document_ids is None:
            return places
        begins = torch.ones_like(self.document_ids, dtype=torch.bool)
        begins[:, 1:] = self.document_ids[:, 1:] != self.document_ids[:, :-1]
        return places - torch.where(begins, places, 0).cummax(dim=1).values

    @property
    def tokens(self) -> int:
        """Real positions of the batch, audio frames included."""
        return int(self.token_mask.sum())


@dataclass(frozen=True)
class TargetReading:
    """What the frozen target says of a batch.

    taps: [B, S, T*H], residual stream after each tapped layer, before the final norm, in ascending order of layer.
    hidden: [B, S, H], after the final norm (head input); None when not asked for.
    """

    taps: Tensor
    hidden: Tensor | None
