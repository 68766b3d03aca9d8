"""The only factory of tiny drafts and their training, for the tiny targets of tiny.py."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dflash_train.config import DraftConfig, LabelSource, Precision, SchedulerConfig, TrainConfig, Variant
from dflash_train.engine.loop import Training
from dflash_train.engine.parallel import shard
from dflash_train.engine.processes import process_group
from dflash_train.engine.stop import Assignment, StopWatch
from dflash_train.model.draft import DraftModel
from dflash_train.recipes.draft import DraftRecipe, draft_recipe
from dflash_train.records import Batch
from tests.dflash_train.tiny import MASK, text_batch, tiny_target

LONGEST = 30


def draft_config(variant: Variant = Variant.dflash2, **changes: Any) -> TrainConfig:
    """A resolved config: 2 draft layers, taps 1 and 2, block 8, 4 candidates."""
    draft = DraftConfig(
        variant=variant, num_hidden_layers=2, target_layer_ids=[1, 2], mask_token_id=MASK, intermediate_size=64,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, selector_rank=8, selector_top_k=4, conv_group_size=8,
    )  # fmt: skip
    config = TrainConfig(max_steps=6, draft=draft, lr_scheduler=SchedulerConfig(horizon=6), seed=3)
    config.objective.num_anchors = 6
    return replace(config, **changes)


def tiny_recipe(variant: Variant = Variant.dflash2, source: LabelSource = LabelSource.target_argmax) -> DraftRecipe:
    config = draft_config(variant)
    config.objective.label_source = source
    return draft_recipe(config, tiny_target(), LONGEST)


@torch.no_grad()
def shake(draft: DraftModel, spread: float = 0.2, seed: int = 5) -> DraftModel:
    """Move every parameter away from its initial value, so that conv and selector do something."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        parameter += spread * torch.randn(parameter.shape, generator=generator)
    return draft


class TextSteps:
    """Batches that are a pure function of the step: rows of four lengths, split evenly over micro-batches and ranks."""

    def __init__(
        self, micro_batches: int = 1, rank: int = 0, world_size: int = 1, lengths: tuple[int, ...] = ()
    ) -> None:
        self.micro_batches, self.rank, self.world_size = micro_batches, rank, world_size
        self.lengths = lengths or (24, 17, LONGEST, 20)

    def iterate(self, first_step: int) -> Generator[tuple[int, list[Batch], float]]:
        step = first_step
        while True:
            whole = text_batch(self.lengths, seed=step)
            size = len(self.lengths) // (self.micro_batches * self.world_size)
            first = self.rank * self.micro_batches * size
            starts = [first + size * i for i in range(self.micro_batches)]
            yield step, [rows_of(whole, start, start + size) for start in starts], 0.0
            step += 1


def rows_of(batch: Batch, first: int, last: int) -> Batch:
    pick = slice(first, last)
    return Batch(
        batch.input_ids[pick], batch.loss_mask[pick], batch.token_mask[pick], batch.audio_mask[pick], batch.rows[pick],
        batch.ids[pick],
    )  # fmt: skip


def train_tiny(
    run_dir: Path, until: int, config: TrainConfig | None = None, link: int = 1, **steps: Any
) -> DraftRecipe:
    """Train to optimizer step `until`, resuming what is in `run_dir`."""
    config = config or draft_config()
    run_dir.mkdir(parents=True, exist_ok=True)
    assignment = Assignment(run_dir, link, None, until)
    with process_group() as processes:
        recipe = draft_recipe(config, tiny_target(), LONGEST)
        shard(recipe.module, processes.mesh, Precision.float32)
        data = TextSteps(rank=processes.rank, world_size=processes.world_size, **steps)
        Training(config, "config", recipe, data, {}, processes, assignment).run(StopWatch(assignment))
        return recipe
