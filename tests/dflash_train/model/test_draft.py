"""The draft (specification 1, 2 and the conformance tests 1, 3 and 6 of its section 11)."""

import pytest
import torch

from dflash_train.blocks.plan import BlockRule, build_plan
from dflash_train.config import Variant
from dflash_train.decode.propose import DraftCache, add_context
from dflash_train.model.draft import DraftModel
from dflash_train.model.init import initialise
from tests.dflash_train.drafts import shake, tiny_recipe
from tests.dflash_train.tiny import MASK, text_batch

VARIANTS = list(Variant)
BOTH = pytest.mark.parametrize("variant", VARIANTS)


def plan_of(recipe, batch, step=1):
    return build_plan(batch, recipe.rule, step)


def hidden_of(recipe, batch, plan, taps=None):
    if taps is None:
        taps = recipe.target.read(batch, recipe.module.shape.target_layer_ids, want_hidden=False).taps
    with torch.no_grad():
        return recipe.draft_hidden(plan, taps)


@pytest.mark.parametrize(("variant", "tensors"), [(Variant.dflash, 3 + 11 * 2), (Variant.dflash2, 3 + 15 * 2 + 3)])
def test_the_state_dict_has_the_published_keys(variant, tensors):
    module = tiny_recipe(variant).module
    names = set(module.state_dict())
    assert len(names) == tensors
    assert {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.1.self_attn.q_norm.weight"} <= names
    assert not any(part in name for name in names for part in ("embed", "lm_head", "inv_freq", "rope"))
    if variant is Variant.dflash2:
        shapes = {name: tuple(t.shape) for name, t in module.state_dict().items()}
        assert shapes["layers.0.attention_conv.base_kernel"] == (2, 2, 32)
        assert shapes["layers.0.mlp_conv.kernel_projection.weight"] == (2 * 2 * 4, 32)
        assert shapes["candidate_selector.predecessor_codebook"] == (97, 8)
        assert shapes["candidate_selector.hidden_projection.weight"] == (8, 32)


def test_a_fresh_dflash2_is_the_plain_dflash_bit_for_bit():
    plain, two = tiny_recipe(Variant.dflash), tiny_recipe(Variant.dflash2)
    shared = {n: t for n, t in two.module.state_dict().items() if "conv" not in n and "selector" not in n}
    plain.module.load_state_dict(shared)
    batch = text_batch()
    plan = plan_of(two, batch)
    assert hidden_of(plain, batch, plan).equal(hidden_of(two, batch, plan))


def test_the_selector_changes_nothing_at_step_0():
    selector = tiny_recipe().module.candidate_selector
    scores = selector.pair_scores(torch.randn(3, 32), torch.tensor([1, 2, 3]), torch.tensor([[4, 5]] * 3))
    assert not scores.any()


def test_initialisation_is_a_function_of_the_seed():
    shape = tiny_recipe().module.shape
    one, same, other = (initialise(DraftModel(shape), seed).fc.weight for seed in (1, 1, 2))
    assert one.equal(same)
    assert not one.equal(other)


@BOTH
def test_nothing_at_or_after_the_anchor_reaches_a_block(variant):
    recipe = tiny_recipe(variant)
    shake(recipe.module)
    batch = text_batch((30, 30))
    plan = plan_of(recipe, batch)
    assert (plan.anchors.diff(dim=1).abs() < 8).any(), "blocks must overlap for this test to mean something"
    taps = recipe.target.read(batch, (1, 2), want_hidden=False).taps
    before = hidden_of(recipe, batch, plan, taps)
    for row in range(2):
        for block in plan.keep[row].nonzero().flatten().tolist():
            later = taps.clone()
            later[row, int(plan.anchors[row, block]) :] += 1.0
            assert hidden_of(recipe, batch, plan, later)[row, block].equal(before[row, block])


@BOTH
def test_the_context_before_the_anchor_does_reach_a_block(variant):
    recipe = tiny_recipe(variant)
    shake(recipe.module)
    batch = text_batch((30, 30))
    plan = plan_of(recipe, batch)
    taps = recipe.target.read(batch, (1, 2), want_hidden=False).taps
    last = int(plan.anchors[0, -1])
    earlier = taps.clone()
    earlier[0, last - 1] += 1.0
    before, after = hidden_of(recipe, batch, plan, taps), hidden_of(recipe, batch, plan, earlier)
    assert not after[0, -1].equal(before[0, -1])


@BOTH
def test_another_blocks_ids_do_not_reach_a_block(variant):
    recipe = tiny_recipe(variant)
    shake(recipe.module)
    batch = text_batch((30,))
    plan = plan_of(recipe, batch)
    before = hidden_of(recipe, batch, plan)
    plan.block_ids[0, 2] = MASK - 5
    after = hidden_of(recipe, batch, plan)
    assert after[0, :2].equal(before[0, :2])
    assert after[0, 3:].equal(before[0, 3:])
    assert not after[0, 2].equal(before[0, 2])


@BOTH
def test_a_training_block_equals_the_decoders_pass_with_a_cache(variant):
    recipe = tiny_recipe(variant)
    draft = shake(recipe.module)
    batch = text_batch((30,))
    plan = plan_of(recipe, batch)
    trained = hidden_of(recipe, batch, plan)
    taps = recipe.target.read(batch, (1, 2), want_hidden=False).taps
    for block in range(plan.anchors.shape[1]):
        anchor, cache = int(plan.anchors[0, block]), DraftCache()
        with torch.no_grad():
            add_context(draft, cache, taps[:, : anchor - 2])  # in two pieces, as the rounds of a decoder give them
            add_context(draft, cache, taps[:, anchor - 2 : anchor])
            stream = recipe.target.embed(plan.block_ids[:, block])
            decoded = draft.propose(cache.layers, stream, plan.positions[:, block], None, 8)
        torch.testing.assert_close(decoded[0], trained[0, block], rtol=1e-5, atol=1e-5)


def test_rotary_tables_stay_fp32_when_the_model_is_cast():
    module = tiny_recipe().module.to(torch.bfloat16)
    assert module.rope.inv_freq.dtype == torch.float32
    assert module.rope.table(torch.arange(3)[None])[0].dtype == torch.float32


def test_a_rule_of_other_block_sizes_needs_no_other_tensors():
    recipe = tiny_recipe()
    shake(recipe.module)
    batch = text_batch((30,))
    rule = BlockRule(16, 3, MASK, 7.0, seed=0)
    plan = build_plan(batch, rule, step=1)
    taps = recipe.target.read(batch, (1, 2), want_hidden=False).taps
    stream = recipe.target.embed(plan.block_ids.flatten(1))
    context = recipe.module.context(taps, torch.arange(30)[None])
    from dflash_train.blocks.mask import dense_mask

    mask = dense_mask(plan.anchors, 30, 16)
    hidden = recipe.module.propose(context, stream, plan.positions.flatten(1), mask, 16)
    assert hidden.shape == (1, 48, 32)
