"""The SALM recipe: its loss is a share of the step's, it learns, it saves what it trained."""

from __future__ import annotations

import math

import pytest
import torch

from dflash_train.data.collate import collate
from dflash_train.data.manifest import open_manifest
from dflash_train.recipes.augment import SpecAugment
from dflash_train.recipes.salm import EXPORT_FOLDER, salm_recipe
from dflash_train.target.load import load_target
from tests.dflash_train import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("salm")


@pytest.fixture(scope="module")
def manifest(folder):
    return open_manifest(tiny.tiny_utterances(folder))


def recipe_of(folder, **keys):
    config = tiny.tiny_salm_config(folder)
    for key, value in keys.items():
        setattr(config, key, value)
    return salm_recipe(config, seed=0)


def batch_of(recipe, manifest, lines):
    return collate(manifest, lines, range(len(lines)), recipe.prompt)


@pytest.mark.parametrize("ctc_weight", [0.0, 0.3])
def test_the_shares_of_micro_batches_add_up_to_the_loss(folder, manifest, ctc_weight):
    recipe = recipe_of(folder, ctc_weight=ctc_weight)
    recipe.module.eval()
    whole = batch_of(recipe, manifest, [0, 1, 2, 3])
    parts = [batch_of(recipe, manifest, lines) for lines in ([0, 1, 2], [3])]
    denominator = recipe.weight(whole)
    assert float(denominator) == sum(float(recipe.weight(part)) for part in parts) == int(whole.loss_mask.sum())
    loss, sums = recipe.loss(recipe.prepare(whole, 1), denominator)
    shares = [recipe.loss(recipe.prepare(part, 1), denominator) for part in parts]
    torch.testing.assert_close(sum(share for share, _ in shares), loss)
    torch.testing.assert_close(sum(share for _, share in shares), sums, rtol=1e-5, atol=1e-4)
    assert recipe.numbers(sums).loss == pytest.approx(float(loss), rel=1e-5)


def test_the_loss_is_the_cross_entropy_of_the_supervised_tokens(folder, manifest):
    recipe = recipe_of(folder, ctc_weight=0.0)
    recipe.module.eval()
    batch = batch_of(recipe, manifest, [2, 5])
    target = recipe.module.speech_lm.target()
    logits = target.logits(target.read(batch, [], want_hidden=True).hidden).log_softmax(-1)
    terms = [
        -logits[row, place - 1, batch.input_ids[row, place]]
        for row in range(2)
        for place in range(1, batch.input_ids.shape[1])
        if batch.loss_mask[row, place]
    ]
    loss, _ = recipe.loss(batch, recipe.weight(batch))
    torch.testing.assert_close(loss, torch.stack(terms).mean())


def test_fresh_weights_depend_on_the_seed_alone(folder):
    torch.manual_seed(1)
    first = recipe_of(folder).module.state_dict()
    torch.manual_seed(2)
    for name, value in recipe_of(folder).module.state_dict().items():
        assert torch.equal(value, first[name]), name


def test_a_fresh_encoder_lets_the_signal_through(folder, manifest):
    front = recipe_of(folder).module.speech_lm.front
    recipe = recipe_of(folder)
    batch = batch_of(recipe, manifest, [0])
    features, mask = front.features(batch.audio, batch.audio_samples)
    assert front.encoder.subsampling(features, mask).std() > 0.02


def test_it_learns_its_rows(folder, manifest):
    recipe = recipe_of(folder)
    batch = batch_of(recipe, manifest, [0, 1])
    optimizer = torch.optim.AdamW(recipe.module.parameters(), lr=3e-3)
    torch.manual_seed(0)
    recipe.module.train()
    losses = []
    for _ in range(40):
        loss, _ = recipe.loss(batch, recipe.weight(batch))
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.6 * losses[0]


def test_every_parameter_is_trained(folder, manifest):
    recipe = recipe_of(folder)
    recipe.module.train()
    loss, _ = recipe.loss(batch := batch_of(recipe, manifest, [0, 1]), recipe.weight(batch))
    loss.backward()
    assert [name for name, value in recipe.module.named_parameters() if value.grad is None] == []


def test_it_saves_a_target(folder, manifest, tmp_path):
    recipe = recipe_of(folder)
    recipe.finish(tmp_path)
    loaded = load_target(tmp_path / EXPORT_FOLDER)
    for name, value in recipe.module.speech_lm.llm.state_dict().items():
        torch.testing.assert_close(loaded.target.llm.state_dict()[name], value.bfloat16().float(), rtol=0, atol=0)


def test_masks_blank_stretches_and_nothing_else():
    features = torch.ones(3, 200, 40)
    augment = SpecAugment(frequency_masks=1, frequency_width=8, time_masks=1, time_width=20)
    masked = augment(features, torch.Generator().manual_seed(0))
    assert set(masked.unique().tolist()) == {0.0, 1.0}
    for row in masked:
        bins, frames = (row == 0).all(0), (row == 0).all(1)
        assert int(bins.sum()) <= 8
        assert int(frames.sum()) <= 20
        assert ((row == 0) == (bins[None, :] | frames[:, None])).all()
    assert torch.equal(augment(features, torch.Generator().manual_seed(0)), masked)
