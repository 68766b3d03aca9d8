"""Counts that are summed over micro-batches and ranks, and divided once, at the end (specification 3.8)."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockSums:
    """Additive float64 sums of one or more micro-batches; `*_by_slot` is [P], the rest are scalars.

    base_* and selector_* losses are weighted numerators, `weight` their common denominator. An accept length counts the
    leading run of right slots plus the bonus token, over blocks with at least one valid slot; slots that are not valid
    neither break nor lengthen a run.
    """

    base_loss: Tensor
    selector_loss: Tensor
    weight: Tensor
    correct: Tensor
    base_correct: Tensor
    in_top_k: Tensor
    slots: Tensor
    accept_len: Tensor
    base_accept_len: Tensor
    blocks: Tensor
    correct_by_slot: Tensor
    survived_by_slot: Tensor
    slots_by_slot: Tensor

    def to_tensor(self) -> Tensor:
        """All sums in one float64 vector, for one all-reduce."""
        return torch.cat([getattr(self, f.name).double().reshape(-1) for f in fields(self)])

    @classmethod
    def from_tensor(cls, values: Tensor) -> BlockSums:
        """The inverse of `to_tensor`."""
        scalars = [f.name for f in fields(cls) if not f.name.endswith("by_slot")]
        vectors = [f.name for f in fields(cls) if f.name.endswith("by_slot")]
        rest = values[len(scalars) :].chunk(len(vectors))
        return cls(**dict(zip(scalars, values, strict=False)), **dict(zip(vectors, rest, strict=True)))

    @property
    def mean_base_loss(self) -> float:
        return _ratio(self.base_loss, self.weight)

    @property
    def mean_selector_loss(self) -> float:
        return _ratio(self.selector_loss, self.weight)

    @property
    def accuracy(self) -> float:
        return _ratio(self.correct, self.slots)

    @property
    def mean_accept_len(self) -> float:
        return _ratio(self.accept_len, self.blocks)

    @property
    def candidate_recall(self) -> float:
        return _ratio(self.in_top_k, self.slots)


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    return float(numerator / denominator) if float(denominator) else 0.0


def survival(correct: Tensor, valid: Tensor) -> Tensor:
    """bool [..., P]: is every valid slot up to and including j correct (and slot j valid)?"""
    broken = (valid & ~correct).cumsum(-1) > 0
    return valid & ~broken
