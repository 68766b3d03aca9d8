"""The draft's loss (specification 2.3, 3.6): base_loss + selector_loss_weight * selector_loss.

Both terms have one denominator, the sum of slot weights over the whole step and all ranks, known before the forward pass:
the selector's label is put in the last candidate's place when it is outside the top-k, so every valid slot counts in both.
Log-softmax is done in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_train.blocks.labels import predecessors
from dflash_train.blocks.plan import BlockPlan
from dflash_train.model.selector import CandidateSelector
from dflash_train.objective.sums import BlockSums, survival


@dataclass(frozen=True)
class LossRule:
    """selector_weight: of the selector term; top_k: candidates a slot; token_limit: ids from it on are vocabulary padding."""

    selector_weight: float
    top_k: int
    token_limit: int


def block_loss(
    hidden: Tensor,
    labels: Tensor,
    plan: BlockPlan,
    head: Callable[[Tensor], Tensor],
    selector: CandidateSelector | None,
    rule: LossRule,
    denominator: Tensor,
) -> tuple[Tensor, BlockSums]:
    """The micro-batch's share of the step's loss, and its sums.

    hidden: [B, N, bs, H], final-normed; labels: int64 [B, N, P]; head: the target's, [..., H] -> [..., V];
    denominator: sum of weights over micro-batches and ranks. The shares of all micro-batches and ranks add up to the
    global loss. Only valid slots reach the head.
    """
    valid, weights = plan.valid, plan.weights[plan.valid]
    predicted, gold = hidden[:, :, 1:][valid], labels[valid]
    logits = head(predicted).float()
    nll = F.cross_entropy(logits, gold, reduction="none")
    base_loss = (weights * nll).sum()
    base_choice = logits.detach()[:, : rule.token_limit].argmax(-1)
    choice, selector_loss = base_choice, torch.zeros_like(base_loss)
    in_top_k = torch.zeros_like(gold, dtype=torch.bool)
    if selector is not None:
        before = predecessors(labels, plan)[valid]
        selected = select(logits, predicted, before, gold, selector, rule)
        selector_loss = (weights * selected.nll).sum()
        choice, in_top_k = selected.choice, selected.in_top_k
    loss = (base_loss + rule.selector_weight * selector_loss) / denominator
    return loss, _sums(plan, gold, base_loss, selector_loss, base_choice, choice, in_top_k)


@dataclass(frozen=True)
class Selected:
    """nll fp32 [R], the selector's own choice int64 [R], was the label among its candidates bool [R]."""

    nll: Tensor
    choice: Tensor
    in_top_k: Tensor


def select(
    logits: Tensor, hidden: Tensor, before: Tensor, gold: Tensor, selector: CandidateSelector, rule: LossRule
) -> Selected:
    """The selector with teacher-forced predecessors on R slots: logits [R, V], hidden [R, H], before and gold int64 [R]."""
    own = logits[:, : rule.token_limit].topk(rule.top_k, dim=-1).indices
    hits = own == gold[:, None]
    in_top_k = hits.any(-1)
    candidates = own.clone()
    candidates[:, -1] = torch.where(in_top_k, own[:, -1], gold)
    place = torch.where(in_top_k, hits.int().argmax(-1), rule.top_k - 1)
    scores = logits.gather(-1, candidates) + selector.pair_scores(hidden, before, candidates)
    nll = F.cross_entropy(scores, place, reduction="none")
    # Without the inserted label the last place holds a token that is wrong anyway: -1 stands for "not the label".
    best = candidates.gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1)
    choice = torch.where(in_top_k, best, -1)
    return Selected(nll, choice, in_top_k)


def _sums(
    plan: BlockPlan,
    gold: Tensor,
    base_loss: Tensor,
    selector_loss: Tensor,
    base_choice: Tensor,
    choice: Tensor,
    in_top_k: Tensor,
) -> BlockSums:
    def spread(hit: Tensor) -> Tensor:
        return torch.zeros_like(plan.valid).masked_scatter(plan.valid, hit)

    right, base_right = spread(choice == gold), spread(base_choice == gold)
    blocks = plan.valid.any(-1)
    survived, base_survived = survival(right, plan.valid), survival(base_right, plan.valid)
    return BlockSums(
        base_loss=base_loss.detach().double(),
        selector_loss=selector_loss.detach().double(),
        weight=plan.weights.sum().double(),
        correct=right.sum().double(),
        base_correct=base_right.sum().double(),
        in_top_k=in_top_k.sum().double(),
        slots=plan.valid.sum().double(),
        accept_len=(blocks.sum() + survived.sum()).double(),
        base_accept_len=(blocks.sum() + base_survived.sum()).double(),
        blocks=blocks.sum().double(),
        correct_by_slot=right.sum((0, 1)).double(),
        survived_by_slot=survived.sum((0, 1)).double(),
        slots_by_slot=plan.valid.sum((0, 1)).double(),
    )
