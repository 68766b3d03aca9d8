"""What a batch says of its own layout."""

from __future__ import annotations

import pytest
import torch

from dflash_train.records import Batch


def batch(document_ids: list[list[int]] | None, length: int = 6) -> Batch:
    ids = torch.zeros(1, length, dtype=torch.int64)
    mask = torch.ones(1, length, dtype=torch.bool)
    documents = None if document_ids is None else torch.tensor(document_ids)
    return Batch(ids, mask, mask, ~mask, torch.zeros(1, dtype=torch.int64), ("a",), document_ids=documents)


@pytest.mark.parametrize(
    ("document_ids", "wanted"),
    [
        pytest.param(None, [[0, 1, 2, 3, 4, 5]], id="a row is one document"),
        pytest.param([[0, 0, 1, 1, 1, 2]], [[0, 1, 0, 1, 2, 0]], id="positions restart in every document"),
        pytest.param([[0, 0, 0, 1, -1, -1]], [[0, 1, 2, 0, 0, 1]], id="the padding is counted by itself"),
    ],
)
def test_positions_count_within_a_document(document_ids: list[list[int]] | None, wanted: list[list[int]]) -> None:
    assert batch(document_ids).positions().tolist() == wanted
