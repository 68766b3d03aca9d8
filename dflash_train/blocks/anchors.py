"""Where blocks start (specification 3.2), with a fixed number of slots and without a random generator.

Each position of a row gets a key that is a hash of (seed, step, global row, position); the eligible positions with the
smallest keys are the anchors. So anchors do not depend on ranks, workers, devices, batch neighbours or padding, and a
resumed run draws the ones that an uninterrupted run draws. No host sync, no data-dependent shape.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
MIX = (-4658895280553007687, -7723592293110705685)  # splitmix64's multipliers as int64
LAST = torch.iinfo(torch.int64).max


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # logical: torch's >> on int64 keeps the sign


def mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser: int64 -> int64, every bit of the input moves every bit of the output."""
    x = x + GOLDEN
    x = (x ^ _shift(x, 30)) * MIX[0]
    x = (x ^ _shift(x, 27)) * MIX[1]
    return x ^ _shift(x, 31)


def position_keys(seed: int, step: int, rows: Tensor, length: int) -> Tensor:
    """Uniform non-negative keys int64 [B, length]; rows: int64 [B], global row numbers."""
    start = torch.tensor(seed, dtype=torch.int64, device=rows.device)
    per_row = mix(mix(mix(start) + step) + rows)
    positions = torch.arange(length, device=rows.device)
    return mix(per_row[:, None] + positions) & LAST


def sample_anchors(loss_mask: Tensor, keys: Tensor, num_slots: int) -> tuple[Tensor, Tensor]:
    """Anchors int64 [B, num_slots], ascending, and keep bool [B, num_slots]; a slot that is not kept has anchor 0.

    Without replacement, uniform over the eligible positions, which are the supervised ones, up to the last. The
    specification's further bound t <= S - bs is left out: S is the padded width, so a row's anchors would depend on its
    neighbours, and an answer's end token would be a label of the last slot alone. Blocks that a row's end cuts short
    are cut by the loss mask. loss_mask: bool [B, S]; keys: int64 [B, S].
    """
    rows, length = loss_mask.shape
    order = torch.where(loss_mask, keys, LAST)
    smallest, positions = order.topk(min(num_slots, length), dim=1, largest=False)
    places = torch.where(smallest < LAST, positions, length).sort(dim=1).values
    missing = places.new_full((rows, num_slots - places.shape[1]), length)
    places = torch.cat([places, missing], dim=1)
    keep = places < length
    return torch.where(keep, places, 0), keep
