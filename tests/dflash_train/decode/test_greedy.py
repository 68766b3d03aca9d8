"""The reference decoder (specification 6): lossless in fp32, and counters that add up."""

import pytest
import torch

from dflash_train.config import Variant
from dflash_train.decode.counters import Counters
from dflash_train.decode.greedy import decode_alone, decode_with_draft, until_stop
from dflash_train.decode.propose import DraftCache, add_context, propose
from dflash_train.engine.optim import make_optimizer
from tests.dflash_train.drafts import TextSteps, draft_config, shake, tiny_recipe
from tests.dflash_train.tiny import EOS, one_text_row, text_batch

BOTH = pytest.mark.parametrize("variant", list(Variant))


@pytest.fixture(scope="module", params=list(Variant))
def learnt(request):
    """A draft that has seen the target's own answers a few times, so that some of its tokens are accepted."""
    recipe = tiny_recipe(request.param)
    optimizer = make_optimizer(recipe.module, draft_config().optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    for step, (batch,), _ in TextSteps().iterate(0):
        item = recipe.prepare(batch, step)
        recipe.loss(item, recipe.weight(item))[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 40:
            return recipe
    raise AssertionError


@pytest.mark.parametrize("slots", [1, 3, 7, 9])
def test_with_a_draft_the_tokens_are_the_targets_own(learnt, slots):
    batch = text_batch((24, 17, 30))
    total = Counters.zero(slots)
    for row in range(3):
        prompt = learnt.target.prompt_embeds(batch, row)
        alone = decode_alone(learnt.target, prompt, 40)
        drafted, counters = decode_with_draft(learnt.target, learnt.module, prompt, 40, slots)
        assert drafted.tokens == alone.tokens
        assert drafted.truncated == alone.truncated
        total += counters
    assert total.rounds > 0


def test_counter_identities(learnt):
    prompt = learnt.target.prompt_embeds(text_batch(), 0)
    for limit in (1, 2, 13, 40):
        decoded, counters = decode_with_draft(learnt.target, learnt.module, prompt, limit, 7)
        emitted = counters.rounds + counters.accepted + 1  # a bonus token a round, and the prefill's
        assert emitted >= len(decoded.tokens)
        assert emitted - len(decoded.tokens) < 8, "only the last round may be cut"
        assert sum(counters.accepted_by_slot) == counters.accepted
        assert list(counters.accepted_by_slot) == sorted(counters.accepted_by_slot, reverse=True)
        assert counters.draft_tokens == 7 * counters.rounds == sum(counters.proposed_by_slot)
        assert counters.rounds == 0 or 1 <= counters.mal <= 8


def test_something_is_accepted_and_something_is_not(learnt):
    """Else the tests above would show little: a random text target is hard, but not impossible, to follow."""
    batch, total = text_batch((24, 17, 30, 20), seed=3), Counters.zero(7)
    for row in range(4):
        _, counters = decode_with_draft(learnt.target, learnt.module, learnt.target.prompt_embeds(batch, row), 60, 7)
        total += counters
    assert 0 < total.accepted < total.draft_tokens


@BOTH
def test_the_answer_ends_at_the_first_end_token(variant):
    recipe = tiny_recipe(variant)
    shake(recipe.module)
    target = recipe.target
    with torch.no_grad():
        target.llm.get_output_embeddings().weight[EOS] *= 6  # an end token within a few steps
    batch = text_batch((24, 17, 30))
    lengths = set()
    for row in range(3):
        prompt = target.prompt_embeds(batch, row)
        alone = decode_alone(target, prompt, 60)
        drafted, _ = decode_with_draft(target, recipe.module, prompt, 60, 7)
        assert drafted == type(drafted)(alone.tokens, (), alone.truncated)
        lengths.add(len(alone.tokens))
        if not alone.truncated:
            assert alone.tokens.index(EOS) == len(alone.tokens) - 1
    assert min(lengths) < 60


@pytest.mark.parametrize(("tokens", "kept"), [([5, 6], [5, 6]), ([5, EOS, 6], [5, EOS]), ([EOS], [EOS]), ([], [])])
def test_until_stop_keeps_the_end_token_and_nothing_after(tokens, kept):
    assert until_stop(tokens, (EOS,)) == kept


def test_counters_are_summed_and_then_divided():
    total = Counters.of_round(3, 4) + Counters.of_round(0, 4) + Counters.of_round(4, 4)
    assert total == Counters(3, 12, 7, (2, 2, 2, 1), (3, 3, 3, 3))
    assert total.mal == pytest.approx(1 + 7 / 3)
    assert total.unconditional == pytest.approx((2 / 3, 2 / 3, 2 / 3, 1 / 3))
    assert total.conditional == pytest.approx((2 / 3, 1.0, 1.0, 0.5))
    assert Counters.zero(4).mal == 0.0


def test_a_proposal_is_what_training_predicts_at_the_same_anchor(learnt):
    batch = text_batch((30,))
    plan = learnt.prepare(batch, 1).plan
    taps = learnt.target.read(batch, learnt.module.shape.target_layer_ids, want_hidden=False).taps
    with torch.no_grad():
        hidden = learnt.draft_hidden(plan, taps)
        for block, anchor in enumerate(plan.anchors[0].tolist()):
            logits = learnt.target.logits(hidden[:, block, 1:])[..., : learnt.target.token_limit]
            first, selector = batch.input_ids[0, anchor : anchor + 1], learnt.module.candidate_selector
            wanted = logits.argmax(-1) if selector is None else selector.walk(hidden[:, block, 1:], logits, first, 4)
            cache = DraftCache()
            add_context(learnt.module, cache, taps[:, :anchor])
            assert propose(learnt.module, learnt.target, cache, first, 7).equal(wanted)


def test_rounds_accept_what_a_replay_with_the_whole_answers_taps_accepts(learnt):
    """Acceptance falls in silence where a round's features are not those of the positions it committed."""
    batch, slots = text_batch(), 7
    prompt = learnt.target.prompt_embeds(batch, 0)
    tokens = decode_alone(learnt.target, prompt, 30).tokens
    _, counters = decode_with_draft(learnt.target, learnt.module, prompt, 30, slots)
    start = prompt.shape[1]
    ids = torch.cat([batch.input_ids[0, :start], torch.tensor(tokens)])
    row = one_text_row(ids, start)
    taps = learnt.target.read(row, learnt.module.shape.target_layer_ids, want_hidden=False).taps
    rounds = accepted = done = 0
    while done < len(tokens) - 1:
        cache = DraftCache()
        with torch.no_grad():
            add_context(learnt.module, cache, taps[:, : start + done])
            proposed = propose(learnt.module, learnt.target, cache, torch.tensor([tokens[done]]), slots)[0].tolist()
        following = tokens[done + 1 :]
        run = next((i for i, (a, b) in enumerate(zip(proposed, following, strict=False)) if a != b), len(following))
        rounds, accepted, done = rounds + 1, accepted + min(run, slots), done + run + 1
    assert accepted > 0
    assert counters.rounds == rounds
    assert abs(counters.accepted - accepted) <= slots, "only the last round may go past the limit"


def test_each_round_gives_the_draft_the_features_of_exactly_the_committed_positions(learnt, monkeypatch):
    """One position too early or too late shows in no token and no counter identity, only in what is accepted."""
    from dflash_train.decode import greedy

    given = []

    def kept(draft, cache, taps):
        given.append(taps)
        add_context(draft, cache, taps)

    monkeypatch.setattr(greedy, "add_context", kept)
    target, batch = learnt.target, text_batch((24, 17, 30, 20), seed=3)
    partial = 0
    for row in range(4):
        given.clear()
        prompt = target.prompt_embeds(batch, row)
        decoded, counters = decode_with_draft(target, learnt.module, prompt, 40, 7)
        partial += 0 < counters.accepted < counters.draft_tokens
        seen = torch.cat(given, dim=1)
        whole = torch.cat([prompt, target.llm.get_input_embeddings()(torch.tensor([decoded.tokens]))], dim=1)
        wanted = target.start(whole, learnt.module.shape.target_layer_ids).taps[:, : seen.shape[1]]
        torch.testing.assert_close(seen, wanted, rtol=1e-4, atol=1e-4)
    assert partial, "rounds that accept a part are the ones where a shift could hide"
