"""The engine's view of a recipe.

Everything that masks alone decide is done in `prepare`, before any forward pass: so the denominator of the loss is known
for the whole step over all ranks, and a step with nothing to learn from is skipped by every rank alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor, nn

from dflash_train.records import Batch

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class Numbers:
    """What a step or a validation set came to. None: the recipe has no such number."""

    loss: float
    base_loss: float | None = None
    selector_loss: float | None = None
    valid_blocks: int | None = None
    accept_len: float | None = None
    accuracy: float | None = None
    candidate_recall: float | None = None


class Recipe(Protocol[Prepared]):
    """A trainable module and its loss."""

    module: nn.Module
    target_fingerprint: str | None
    empty_reason: str  # the skip reason of a step whose denominator is zero

    def prepare(self, batch: Batch, step: int) -> Prepared:
        """What masks alone decide of a micro-batch of optimizer step `step`."""
        ...

    def weight(self, prepared: Prepared) -> Tensor:
        """Float64 scalar: the micro-batch's share of the loss's denominator."""
        ...

    def loss(self, prepared: Prepared, denominator: Tensor) -> tuple[Tensor, Tensor]:
        """The micro-batch's share of the step's loss, and a float64 vector of sums that add up over shares."""
        ...

    def numbers(self, sums: Tensor) -> Numbers:
        """From the sums over all micro-batches and ranks."""
        ...

    def finish(self, folder: Path) -> None:
        """Called on every rank once the last step is saved; `folder` is the run directory."""
        ...
