"""The rows of a step are a function of the manifest, the seed and the step, however the work is shared."""

from __future__ import annotations

import itertools

import pytest
import torch

from dflash_train.data.loader import (
    EvalData,
    Share,
    TrainData,
    max_supervised_of_a_row,
)
from dflash_train.data.manifest import open_manifest
from dflash_train.errors import ConfigError
from dflash_train.recipes.salm import facts_of
from dflash_train.target.speech_lm import prompt_of
from tests.dflash_train import tiny


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return open_manifest(tiny.tiny_utterances(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def prompt():
    words = tiny.tiny_tokenizer()
    return prompt_of(facts_of(words, 16), words)


def rows_of_step(manifest, prompt, step, accumulation, world_size, seed=0):
    """Global row -> id over all ranks and micro-batches."""
    found = {}
    for rank in range(world_size):
        data = TrainData(manifest, prompt, Share(8, accumulation, rank, world_size), seed)
        for batch in data.batches(step):
            found.update(zip(batch.rows.tolist(), batch.ids, strict=True))
    return found


@pytest.mark.parametrize(("accumulation", "world_size"), [(1, 1), (4, 1), (1, 2), (2, 2), (1, 8), (8, 1)])
@pytest.mark.parametrize("step", [0, 1, 5])
def test_every_sharing_of_the_work_has_the_same_global_rows(manifest, prompt, step, accumulation, world_size):
    rows = rows_of_step(manifest, prompt, step, accumulation, world_size)
    assert sorted(rows) == list(range(8))
    assert rows == rows_of_step(manifest, prompt, step, 1, 1)


def test_an_epoch_holds_every_row_once_and_runs_on_into_the_next(manifest, prompt):
    data = TrainData(manifest, prompt, Share(8), 3)
    seen = [line for step in range(3) for line in data.lines(step, range(8))]
    assert sorted(seen[:12]) == sorted(seen[12:]) == list(range(12))
    assert seen[:12] != seen[12:]


def test_another_seed_is_another_order(manifest, prompt):
    assert rows_of_step(manifest, prompt, 0, 1, 1, seed=1) != rows_of_step(manifest, prompt, 0, 1, 1, seed=2)


def test_without_a_seed_the_order_is_the_manifests(manifest, prompt):
    assert TrainData(manifest, prompt, Share(8), None).lines(1, range(8)) == [8, 9, 10, 11, 0, 1, 2, 3]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_gives_the_batches_of_an_uninterrupted_run(manifest, prompt, num_workers):
    data = TrainData(manifest, prompt, Share(4, 2), 5, num_workers)
    whole = list(itertools.islice(data.iterate(0), 4))
    resumed = list(itertools.islice(data.iterate(2), 2))
    assert [step for step, _, _ in whole] == [0, 1, 2, 3]
    for (step, ours, seconds), (wanted_step, wanted, _) in zip(resumed, whole[2:], strict=True):
        assert step == wanted_step
        assert seconds >= 0
        for batch, other in zip(ours, wanted, strict=True):
            assert batch.ids == other.ids
            assert torch.equal(batch.input_ids, other.input_ids)
            assert torch.equal(batch.audio, other.audio)


@pytest.mark.parametrize(("batch_size", "accumulation", "world_size", "advice"), [(8, 3, 1, "9"), (6, 1, 4, "8")])
def test_a_batch_that_cannot_be_shared_evenly_is_refused(batch_size, accumulation, world_size, advice):
    with pytest.raises(ConfigError, match=rf"write {advice}") as seen:
        Share(batch_size, accumulation, 0, world_size)
    assert seen.value.key == "data.batch_size"


@pytest.mark.parametrize(("batch_size", "limit", "sizes"), [(5, None, [5, 5, 2]), (5, 2, [5, 5]), (12, 9, [12])])
def test_a_held_out_set_is_read_once_in_order(manifest, prompt, batch_size, limit, sizes):
    batches = list(EvalData(manifest, prompt, batch_size).batches(limit))
    assert [len(batch.ids) for batch in batches] == sizes
    ids = [key for batch in batches for key in batch.ids]
    assert ids == [u.id for u in manifest.utterances()][: len(ids)]


def test_the_longest_row_is_known_without_audio(manifest, prompt):
    batch = next(EvalData(manifest, prompt, 12).batches())
    assert max_supervised_of_a_row(manifest, prompt) == int(batch.loss_mask.sum(1).max())
