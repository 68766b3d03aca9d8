"""Composed sets: exact texts, the lengths asked for, the same bytes for the same seed."""

from __future__ import annotations

import pytest

from dflash_train.data.compose import Composition, compose
from dflash_train.data.manifest import open_manifest
from dflash_train.errors import DataError
from tests.dflash_train import tiny

WORDS = tiny.tiny_tokenizer()


def count(text: str) -> int:
    return len(WORDS.encode(text, add_special_tokens=False))


def composed(folder, **keys):
    path = folder / "out" / "set.jsonl.gz"
    plan = Composition(**{"count": 20, "split": "train", "tokens": (6, 16), **keys})
    compose(tiny.tiny_clips(folder), path, plan, count)
    return path


def test_texts_keep_the_lengths_asked_for_and_never_recur(tmp_path):
    texts = [u.text for u in open_manifest(composed(tmp_path)).utterances()]
    assert all(6 <= count(text) <= 16 for text in texts)
    assert len(set(texts)) == 20


def test_the_same_seed_gives_the_same_bytes_and_another_another_set(tmp_path):
    first = composed(tmp_path).read_bytes()
    assert composed(tmp_path).read_bytes() == first
    assert composed(tmp_path, seed=1).read_bytes() != first


def test_excluded_texts_are_not_made(tmp_path):
    texts = frozenset(u.text for u in open_manifest(composed(tmp_path)).utterances())
    others = {u.text for u in open_manifest(composed(tmp_path, excluded=texts)).utterances()}
    assert not texts & others


def test_a_curriculum_rises_from_single_clips_to_the_full_length(tmp_path):
    texts = [u.text for u in open_manifest(composed(tmp_path, count=200, tokens=(1, 24), rising=True)).utterances()]
    assert all(text in tiny.WORDS for text in texts[:50])
    lengths = [count(text) for text in texts]
    assert max(lengths) <= 24
    assert sum(lengths[:50]) < sum(lengths[60:110]) < sum(lengths[150:])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"split": "heldout"}, "0 clips of the split 'heldout'"),
        ({"tokens": (200, 300)}, "use more clips or fewer rows"),
    ],
)
def test_what_cannot_be_composed_is_said(tmp_path, keys, words):
    with pytest.raises(DataError, match=words):
        composed(tmp_path, **keys)
