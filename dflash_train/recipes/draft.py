"""Training a DFlash or DFlash2 draft against a frozen target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dflash_train.blocks.labels import slot_labels, target_argmax_ids
from dflash_train.blocks.mask import dense_mask
from dflash_train.blocks.plan import BlockPlan, BlockRule, build_plan
from dflash_train.config import LabelSource, TrainConfig, Variant
from dflash_train.model.draft import DraftModel
from dflash_train.model.init import initialise
from dflash_train.model.ops import TORCH_OPS, LayerOps
from dflash_train.model.shape import DraftShape
from dflash_train.objective.loss import LossRule, block_loss
from dflash_train.objective.sums import BlockSums
from dflash_train.recipes.base import Numbers
from dflash_train.records import Batch
from dflash_train.target.base import Target


@dataclass(frozen=True)
class Planned:
    """A micro-batch and its blocks."""

    batch: Batch
    plan: BlockPlan


@dataclass
class DraftRecipe:
    """See recipes.base.Recipe. The target is an argument of the draft's training, never a part of its module."""

    module: DraftModel
    target: Target
    target_fingerprint: str | None
    label_source: LabelSource
    rule: BlockRule
    loss_rule: LossRule
    empty_reason: str = "no_valid_anchors"

    def prepare(self, batch: Batch, step: int) -> Planned:
        return Planned(batch, build_plan(batch, self.rule, step))

    def weight(self, prepared: Planned) -> Tensor:
        return prepared.plan.weights.sum(dtype=torch.float64)

    def loss(self, prepared: Planned, denominator: Tensor) -> tuple[Tensor, Tensor]:
        batch, plan = prepared.batch, prepared.plan
        from_target = self.label_source is LabelSource.target_argmax
        reading = self.target.read(batch, self.module.shape.target_layer_ids, want_hidden=from_target)
        label_ids = batch.input_ids
        if from_target:
            assert reading.hidden is not None
            label_ids = target_argmax_ids(batch, reading.hidden, self.target.logits, self.target.token_limit)
        hidden = self.draft_hidden(plan, reading.taps)
        loss, sums = block_loss(
            hidden,
            slot_labels(label_ids, plan),
            plan,
            self.head,
            self.module.candidate_selector,
            self.loss_rule,
            denominator.float(),  # in bfloat16 it would be rounded by up to 0.4 %, and every gradient with it
        )
        return loss, sums.to_tensor()

    def head(self, hidden: Tensor) -> Tensor:
        """[..., H] of the draft, in its precision -> the target's logits [..., V], in the target's."""
        return self.target.logits(hidden.to(self.target.dtype))

    def draft_hidden(self, plan: BlockPlan, taps: Tensor) -> Tensor:
        """taps: [B, S, T*H] -> final-normed hidden [B, N, bs, H]."""
        rows, length, _ = taps.shape
        blocks, block_size = plan.block_ids.shape[1:]
        stream = self.target.embed(plan.block_ids.flatten(1))
        context_positions = torch.arange(length, device=taps.device).expand(rows, -1)
        mask = dense_mask(plan.anchors, length, block_size)
        hidden = self.module(taps, context_positions, stream, plan.positions.flatten(1), mask)
        return hidden.view(rows, blocks, block_size, -1)

    def numbers(self, sums: Tensor) -> Numbers:
        total = BlockSums.from_tensor(sums)
        base, selector = total.mean_base_loss, total.mean_selector_loss
        dflash2 = self.module.candidate_selector is not None
        return Numbers(
            loss=base + self.loss_rule.selector_weight * selector,
            base_loss=base,
            selector_loss=selector if dflash2 else None,
            valid_blocks=int(total.blocks),
            accept_len=total.mean_accept_len,
            accuracy=total.accuracy,
            candidate_recall=total.candidate_recall if dflash2 else None,
        )

    def finish(self, folder: Path) -> None:
        """A draft leaves its run only through `dflash-train export`, once its checkpoint was accepted."""


def draft_shape(config: TrainConfig, target: Target) -> DraftShape:
    """The draft's shape from the resolved config and the target; each field is named here, none is copied wholesale."""
    draft, llm = config.draft, target.llm_config
    assert draft.target_layer_ids is not None
    assert draft.mask_token_id is not None
    assert draft.intermediate_size is not None
    assert draft.num_attention_heads is not None
    assert draft.num_key_value_heads is not None
    assert draft.head_dim is not None
    dflash2 = {
        "conv_kernel_size": draft.conv_kernel_size,
        "conv_group_size": draft.conv_group_size,
        "selector_rank": draft.selector_rank,
        "selector_top_k": draft.selector_top_k,
    }
    rope = {k: v for k, v in dict(llm.rope_parameters).items() if k != "partial_rotary_factor"}
    return DraftShape(
        variant=draft.variant,
        hidden_size=target.hidden_size,
        intermediate_size=draft.intermediate_size,
        num_hidden_layers=draft.num_hidden_layers,
        num_attention_heads=draft.num_attention_heads,
        num_key_value_heads=draft.num_key_value_heads,
        head_dim=draft.head_dim,
        vocab_size=target.vocab_size,
        num_target_layers=target.num_layers,
        target_layer_ids=tuple(draft.target_layer_ids),
        block_size=draft.block_size,
        mask_token_id=draft.mask_token_id,
        rms_norm_eps=float(getattr(llm, "rms_norm_eps", 1e-6)),
        rope_parameters=rope,
        max_position_embeddings=int(llm.max_position_embeddings),
        **(dflash2 if draft.variant is Variant.dflash2 else {}),
        input_embedding_scale=target.embedding_scale,
        output_multiplier=target.output_multiplier,
        final_logit_softcapping=float(getattr(llm, "final_logit_softcapping", None) or 0.0),
    )


def draft_recipe(config: TrainConfig, target: Target, most_anchors: int, ops: LayerOps = TORCH_OPS) -> DraftRecipe:
    """A fresh draft on the target's device, fp32.

    most_anchors: supervised tokens of the row that has most, so no row of the data can hold more anchors.
    """
    shape = draft_shape(config, target)
    module = initialise(DraftModel(shape, ops), config.seed).to(target.device)
    rule = BlockRule(
        block_size=shape.block_size,
        num_slots=min(config.objective.num_anchors, most_anchors),
        mask_token_id=shape.mask_token_id,
        gamma=config.objective.loss_decay_gamma,
        seed=config.seed,
    )
    loss_rule = LossRule(config.objective.selector_loss_weight, shape.selector_top_k, target.token_limit)
    return DraftRecipe(module, target, config.target.fingerprint, config.objective.label_source, rule, loss_rule)
