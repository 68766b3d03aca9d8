"""SpecAugment (Park et al. 2019): bands of frequency and stretches of time of the log-mel features are blanked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SpecAugment:
    """frequency_width in mel bins, time_width in frames of 10 ms: the widest of each mask. Blank is 0, the mean."""

    frequency_masks: int = 2
    frequency_width: int = 12
    time_masks: int = 4
    time_width: int = 20

    def __call__(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """features [B, F, mel] -> the same with every row's own masks. Drawn on the CPU, so alike on every device."""
        rows, frames, bins = features.shape
        blank = torch.zeros(rows, frames, bins, dtype=torch.bool)
        for _ in range(self.frequency_masks):
            blank |= stretches(rows, bins, self.frequency_width, generator)[:, None, :]
        for _ in range(self.time_masks):
            blank |= stretches(rows, frames, self.time_width, generator)[:, :, None]
        return features.masked_fill(blank.to(features.device), 0.0)


def stretches(rows: int, size: int, widest: int, generator: torch.Generator | None) -> Tensor:
    """bool [rows, size]: one stretch a row, its width uniform in 0..widest, its place uniform."""
    width = torch.rand(rows, 1, generator=generator) * widest
    start = torch.rand(rows, 1, generator=generator) * (size - width).clamp_min(0.0)
    place = torch.arange(size)[None]
    return (place >= start.floor()) & (place < (start + width).floor())
