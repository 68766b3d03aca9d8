"""Anchors (specification 3.2): eligible, uniform, ascending, and a function of (seed, step, global row) alone."""

import torch

from dflash_train.blocks.anchors import position_keys, sample_anchors


def draw(loss_mask, slots, seed=0, step=1, rows=None):
    rows = torch.arange(loss_mask.shape[0]) if rows is None else rows
    return sample_anchors(loss_mask, position_keys(seed, step, rows, loss_mask.shape[1]), slots)


def test_anchors_are_eligible_distinct_and_ascending():
    loss_mask = torch.rand(16, 40, generator=torch.Generator().manual_seed(0)) < 0.4
    anchors, keep = draw(loss_mask, 12)
    for row in range(16):
        kept = anchors[row][keep[row]]
        assert len(kept) == min(12, int(loss_mask[row].sum()))
        assert (kept.diff() > 0).all()
        assert loss_mask[row, kept].all()
        assert (anchors[row][~keep[row]] == 0).all()


def test_every_supervised_position_may_start_a_block_also_the_last_ones():
    loss_mask = torch.zeros(1, 20, dtype=torch.bool)
    loss_mask[0, 5:] = True
    anchors, keep = draw(loss_mask, 20)
    assert anchors[keep].tolist() == list(range(5, 20))


def test_the_number_of_slots_is_fixed_however_short_the_row():
    loss_mask = torch.zeros(2, 5, dtype=torch.bool)
    loss_mask[0, 3] = True
    anchors, keep = draw(loss_mask, 9)
    assert anchors.shape == keep.shape == (2, 9)
    assert keep.sum(1).tolist() == [1, 0]


def test_anchors_depend_on_seed_step_and_global_row_and_on_nothing_else():
    loss_mask = torch.ones(4, 30, dtype=torch.bool)
    anchors, _ = draw(loss_mask, 6)
    alone, _ = draw(loss_mask[2:3], 6, rows=torch.tensor([2]))
    assert alone.equal(anchors[2:3]), "batch neighbours must not matter"
    wide = torch.cat([loss_mask, torch.zeros(4, 7, dtype=torch.bool)], dim=1)
    assert draw(wide, 6)[0].equal(anchors), "padding must not matter"
    for change in ({"seed": 1}, {"step": 2}, {"rows": torch.arange(4) + 4}):
        assert not draw(loss_mask, 6, **change)[0].equal(anchors), change


def test_anchors_are_uniform_over_the_eligible_positions():
    loss_mask = torch.zeros(4000, 24, dtype=torch.bool)
    loss_mask[:, 4:24] = True
    anchors, keep = draw(loss_mask, 5)
    counts = torch.bincount(anchors[keep], minlength=24)[4:].double()
    expected = 4000 * 5 / 20
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001
