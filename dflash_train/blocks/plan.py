"""The plan of a micro-batch's blocks: everything that depends on masks alone, decided before the target runs.

Block of anchor a: ids [x[a], mask, ...], positions a..a+P; slot j predicts the token AT a+j, so there is no shift
(specification 3.3). Slot 0 never has loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_train.blocks.anchors import position_keys, sample_anchors
from dflash_train.errors import ConfigError
from dflash_train.records import Batch


@dataclass(frozen=True)
class BlockRule:
    """What is fixed for a run: how blocks are laid out and weighted."""

    block_size: int
    num_slots: int  # anchor slots of a row, the same for every batch
    mask_token_id: int
    gamma: float | None
    seed: int


@dataclass(frozen=True)
class BlockPlan:
    """anchors int64 [B,N], keep bool [B,N], block_ids, positions int64 [B,N,bs], valid bool, weights fp32 [B,N,P]."""

    anchors: Tensor
    keep: Tensor
    block_ids: Tensor
    positions: Tensor
    valid: Tensor
    weights: Tensor


def slot_weights(valid: Tensor, gamma: float | None) -> Tensor:
    """Weight of each predicted slot in the loss: exp(-(j-1)/gamma) where valid, else 0.

    valid: bool [B, N, P], entry j-1 is slot j. gamma: in slots; None weighs all alike. Returns fp32 [B, N, P].
    Raises ConfigError if gamma <= 0. Source: specification 3.6 (bs 16 / 7, bs 10 / 5, bs 8 / 4).
    """
    if gamma is not None and gamma <= 0:
        raise ConfigError(f"objective.loss_decay_gamma: {gamma} was given; allowed: above 0, or null")
    slots = torch.arange(valid.shape[-1], dtype=torch.float32, device=valid.device)
    decay = torch.ones_like(slots) if gamma is None else torch.exp(-slots / gamma)
    return decay * valid


def build_plan(batch: Batch, rule: BlockRule, step: int) -> BlockPlan:
    """Anchors of (seed, step, global row), and the blocks that they start."""
    length = batch.input_ids.shape[1]
    keys = position_keys(rule.seed, step, batch.rows, length)
    anchors, keep = sample_anchors(batch.loss_mask, keys, rule.num_slots)
    positions = anchors[..., None] + torch.arange(rule.block_size, device=anchors.device)
    inside = positions < length
    places = positions.clamp(max=length - 1)
    supervised = _gather(batch.loss_mask, places) & inside
    valid = keep[..., None] & supervised[..., 1:]
    block_ids = torch.full_like(positions, rule.mask_token_id)
    block_ids[..., 0] = torch.where(keep, _gather(batch.input_ids, anchors), rule.mask_token_id)
    return BlockPlan(anchors, keep, block_ids, positions, valid, slot_weights(valid, rule.gamma))


def _gather(values: Tensor, places: Tensor) -> Tensor:
    """values: [B, S], places: int64 [B, ...] -> values at the places, in the shape of `places`."""
    return values.gather(1, places.flatten(1)).view_as(places)


def slot_values(values: Tensor, plan: BlockPlan) -> Tensor:
    """values: [B, S] -> [B, N, P], the value at the position of each predicted slot (clamped into the row)."""
    return _gather(values, plan.positions[..., 1:].clamp(max=values.shape[1] - 1))
