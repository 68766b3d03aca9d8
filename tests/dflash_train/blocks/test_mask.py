"""The mask rule by brute force (specification 3.4)."""

import torch

from dflash_train.blocks.mask import dense_mask


def test_a_slot_sees_the_context_before_its_anchor_and_its_own_block():
    anchors = torch.tensor([[3, 5, 9], [0, 4, 0]])  # overlapping blocks; two that are not kept in row 1
    length, block_size = 12, 4
    mask = dense_mask(anchors, length, block_size)
    assert mask.shape == (2, 1, 12, 24)
    for row in range(2):
        for query in range(12):
            for key in range(24):
                own = query // block_size
                seen = key < anchors[row, own] if key < length else (key - length) // block_size == own
                assert bool(mask[row, 0, query, key]) == bool(seen), (row, query, key)


def test_every_query_sees_something():
    assert dense_mask(torch.zeros(1, 2, dtype=torch.int64), 6, 4).any(-1).all()
