"""Block layout and weights (specification 3.3, 3.5, 3.6)."""

import math

import pytest
import torch

from dflash_train.blocks.labels import predecessors, slot_labels
from dflash_train.blocks.plan import BlockRule, build_plan, slot_weights
from dflash_train.errors import ConfigError
from tests.dflash_train.tiny import MASK, text_batch

RULE = BlockRule(block_size=8, num_slots=5, mask_token_id=MASK, gamma=4.0, seed=1)


def test_a_block_is_the_anchor_and_masks_at_consecutive_positions():
    batch = text_batch((30, 12))
    plan = build_plan(batch, RULE, step=4)
    assert plan.keep.any(1).all()
    for row, block in plan.keep.nonzero().tolist():
        anchor = int(plan.anchors[row, block])
        assert plan.block_ids[row, block].tolist() == [int(batch.input_ids[row, anchor]), *[MASK] * 7]
        assert plan.positions[row, block].tolist() == list(range(anchor, anchor + 8))


def test_slot_j_is_labelled_by_the_token_at_anchor_plus_j():
    batch = text_batch((30, 12))
    plan = build_plan(batch, RULE, step=4)
    labels = slot_labels(batch.input_ids, plan)
    before = predecessors(labels, plan)
    for row, block, j in plan.valid.nonzero().tolist():
        place = int(plan.anchors[row, block]) + j + 1
        assert int(labels[row, block, j]) == int(batch.input_ids[row, place])
        assert int(before[row, block, j]) == int(batch.input_ids[row, place - 1])


def test_a_slot_is_valid_iff_its_block_is_kept_and_its_position_supervised_and_in_the_row():
    batch = text_batch((30, 12))
    plan = build_plan(batch, RULE, step=4)
    length = batch.input_ids.shape[1]
    for row in range(2):
        for block in range(5):
            for j in range(1, 8):
                place = int(plan.anchors[row, block]) + j
                wanted = bool(plan.keep[row, block]) and place < length and bool(batch.loss_mask[row, place])
                assert bool(plan.valid[row, block, j - 1]) == wanted


@pytest.mark.parametrize(("block_size", "gamma", "total"), [(8, 4.0, 3.735), (16, 7.0, 6.631), (8, None, 7.0)])
def test_weights_decay_with_the_slot(block_size, gamma, total):
    weights = slot_weights(torch.ones(1, 1, block_size - 1, dtype=torch.bool), gamma)[0, 0]
    assert float(weights.sum()) == pytest.approx(total, abs=5e-4)
    assert float(weights[0]) == 1.0
    if gamma:
        assert float(weights[3]) == pytest.approx(math.exp(-3 / gamma))


def test_invalid_slots_weigh_nothing_and_a_gamma_of_zero_is_refused():
    assert slot_weights(torch.zeros(1, 1, 7, dtype=torch.bool), 4.0).sum() == 0
    with pytest.raises(ConfigError, match="loss_decay_gamma"):
        slot_weights(torch.ones(1, 1, 7, dtype=torch.bool), 0.0)


def test_every_step_draws_anchors_of_its_own():
    batch = text_batch((30, 30))
    rule = BlockRule(8, 4, MASK, 4.0, seed=0)
    one, same, other = (build_plan(batch, rule, step).anchors for step in (1, 1, 2))
    assert one.equal(same)
    assert not one.equal(other)
