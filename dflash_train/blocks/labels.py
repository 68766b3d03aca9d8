"""What each slot should say (specification 3.7).

ground_truth: the manifest's tokens. target_argmax: the target's greedy next token under the dataset's own context, so
the label of position t comes from the target's logits at t-1. Neither changes context features, anchors or masks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dflash_train.blocks.plan import BlockPlan, slot_values
from dflash_train.records import Batch

CHUNK_POSITIONS = 1024  # supervised positions projected to the vocabulary at once


@torch.no_grad()
def target_argmax_ids(batch: Batch, hidden: Tensor, logits: Callable[[Tensor], Tensor], token_limit: int) -> Tensor:
    """int64 [B, S]: input_ids, where supervised replaced by the target's greedy token given everything before.

    hidden: [B, S, H], the target's head input. logits: the target's head. Ids from `token_limit` on are padding rows of
    the vocabulary and never win. Position 0 has no predecessor and keeps its token.
    """
    supervised = batch.loss_mask.clone()
    supervised[:, 0] = False
    predecessors = hidden[:, :-1][supervised[:, 1:]]
    winners = [logits(chunk)[..., :token_limit].argmax(-1) for chunk in predecessors.split(CHUNK_POSITIONS)]
    ids = batch.input_ids.clone()
    if winners:
        ids[supervised] = torch.cat(winners)
    return ids


def slot_labels(label_ids: Tensor, plan: BlockPlan) -> Tensor:
    """int64 [B, N, P]: the label of each predicted slot; slots that are not valid hold an arbitrary id."""
    return slot_values(label_ids, plan)


def predecessors(labels: Tensor, plan: BlockPlan) -> Tensor:
    """int64 [B, N, P]: the teacher-forced token before each slot: the real anchor before slot 1, else the label."""
    return torch.cat([plan.block_ids[..., :1], labels[..., :-1]], dim=-1)
