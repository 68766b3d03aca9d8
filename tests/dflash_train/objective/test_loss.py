"""The objective against the formulas in fp64, slot by slot (specification 2.3, 3.6, 3.8)."""

import copy
import math

import pytest
import torch

from dflash_train.blocks.plan import BlockPlan
from dflash_train.config import LabelSource, Variant
from dflash_train.model.selector import CandidateSelector
from dflash_train.objective.loss import LossRule, block_loss, select
from dflash_train.objective.sums import BlockSums
from tests.dflash_train.drafts import rows_of, shake, tiny_recipe
from tests.dflash_train.tiny import text_batch

CASES = pytest.mark.parametrize(("variant", "source"), [(v, s) for v in Variant for s in LabelSource])


def prepared(recipe, batch, step=2):
    item = recipe.prepare(batch, step)
    return item, recipe.weight(item)


def by_formula(recipe, item):
    """Loss and sums, written from the specification with loops in fp64."""
    batch, plan, target, draft = item.batch, item.plan, recipe.target, recipe.module
    reading = target.read(batch, draft.shape.target_layer_ids, want_hidden=True)
    said = target.logits(reading.hidden)[..., : target.token_limit].argmax(-1)
    hidden = recipe.draft_hidden(plan, reading.taps).double()
    head, rows = target.head_weight.double(), range(len(batch.ids))
    base = selector = weight = 0.0
    runs, chosen_right = [], 0
    for row in rows:
        for block in plan.keep[row].nonzero().flatten().tolist():
            anchor = int(plan.anchors[row, block])
            previous, run, alive, has_slot = int(batch.input_ids[row, anchor]), 0, True, False
            for j in range(1, 8):
                place = anchor + j
                if place >= batch.input_ids.shape[1] or not batch.loss_mask[row, place]:
                    continue
                has_slot = True
                from_target = recipe.label_source is LabelSource.target_argmax
                gold = int(said[row, place - 1]) if from_target else int(batch.input_ids[row, place])
                h, w = hidden[row, block, j], math.exp(-(j - 1) / 4.0)
                logits = head @ h
                base = base - w * torch.log_softmax(logits, -1)[gold]
                weight += w
                choice = int(logits[: target.token_limit].argmax())
                if draft.candidate_selector is not None:
                    own = logits[: target.token_limit].topk(4).indices.tolist()
                    candidates = own if gold in own else [*own[:-1], gold]
                    s = draft.candidate_selector
                    left = s.predecessor_codebook[previous].double() * (s.hidden_projection.weight.double() @ h)
                    score = lambda c: logits[c] + left @ s.successor_codebook[c].double()  # noqa: B023, E731
                    selector = (
                        selector
                        - w * torch.log_softmax(torch.stack([score(c) for c in candidates]), -1)[candidates.index(gold)]
                    )
                    choice = own[int(torch.stack([score(c) for c in own]).argmax())]
                chosen_right += choice == gold
                alive = alive and choice == gold
                run += alive
                previous = gold
            if has_slot:
                runs.append(1 + run)
    return base / weight + selector / weight, weight, runs, chosen_right


@CASES
def test_loss_gradients_and_metrics_are_the_formulas(variant, source):
    recipe = tiny_recipe(variant, source)
    shake(recipe.module)
    item, weight = prepared(recipe, text_batch((30, 12, 24)))
    loss, sums = recipe.loss(item, weight)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in recipe.module.named_parameters()}
    recipe.module.zero_grad()
    wanted, total, runs, right = by_formula(recipe, item)
    wanted.backward()
    assert float(weight) == pytest.approx(total, rel=1e-6)
    assert float(loss.detach()) == pytest.approx(float(wanted), rel=1e-5)
    for name, parameter in recipe.module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=2e-3, atol=1e-5, msg=name)
    counts = BlockSums.from_tensor(sums)
    assert int(counts.blocks) == len(runs)
    assert counts.mean_accept_len == pytest.approx(sum(runs) / len(runs))
    assert int(counts.correct) == right
    assert 1.0 <= counts.mean_accept_len <= 8.0


@CASES
def test_survival_adds_up_to_the_accept_length(variant, source):
    recipe = tiny_recipe(variant, source)
    shake(recipe.module)
    item, weight = prepared(recipe, text_batch((30, 30)))
    counts = BlockSums.from_tensor(recipe.loss(item, weight)[1])
    assert float(counts.accept_len) == float(counts.blocks + counts.survived_by_slot.sum())
    assert float(counts.slots) == float(counts.slots_by_slot.sum())
    assert float(counts.correct) == float(counts.correct_by_slot.sum())


def test_shares_of_micro_batches_add_up_to_the_loss_of_the_whole():
    recipe = tiny_recipe()
    shake(recipe.module)
    batch = text_batch((30, 12, 24, 17))
    item, weight = prepared(recipe, batch)
    whole, sums = recipe.loss(item, weight)
    whole.backward()
    gradients = copy.deepcopy([p.grad for p in recipe.module.parameters()])
    recipe.module.zero_grad()
    parts = [recipe.loss(recipe.prepare(rows_of(batch, i, i + 1), 2), weight) for i in range(4)]
    for loss, _ in parts:
        loss.backward()
    assert float(sum(loss.detach() for loss, _ in parts)) == pytest.approx(float(whole.detach()), rel=1e-6)
    torch.testing.assert_close(torch.stack([s for _, s in parts]).sum(0), sums, rtol=1e-6, atol=1e-6)
    for parameter, gradient in zip(recipe.module.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_a_batch_without_anchors_has_no_weight_and_no_gradient():
    recipe = tiny_recipe()
    batch = text_batch((12, 10), prompt=12)
    item, weight = prepared(recipe, batch)
    assert float(weight) == 0.0
    loss, _ = recipe.loss(item, torch.ones((), dtype=torch.float64))
    loss.backward()
    assert all(not p.grad.any() for p in recipe.module.parameters() if p.grad is not None)


def test_the_denominator_is_not_rounded_to_the_drafts_precision():
    recipe = tiny_recipe()
    shake(recipe.module).to(torch.bfloat16)
    recipe.target.to(torch.bfloat16)
    item, weight = prepared(recipe, text_batch((30, 12, 24)))
    assert abs(float(weight.bfloat16()) / float(weight) - 1) > 5e-4, "else this shows nothing"
    loss, sums = recipe.loss(item, weight)
    assert float(loss.detach()) == pytest.approx(recipe.numbers(sums).loss, rel=1e-5)


def two_slots():
    """Hand-made: 6 ids, of which 5 is a padding row; 2 candidates; the selector prefers id 3 by far after token 0."""
    selector = CandidateSelector(hidden_size=2, vocab_size=6, rank=1)
    with torch.no_grad():
        selector.predecessor_codebook.zero_()[0] = 1.0
        selector.successor_codebook.zero_()[3] = 100.0
        selector.hidden_projection.weight.copy_(torch.tensor([[1.0, 0.0]]))
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 9.0]] * 2)
    return selector, logits, torch.tensor([[1.0, 0.0]] * 2), LossRule(1.0, top_k=2, token_limit=5)


def test_a_label_outside_the_candidates_trains_the_selector_and_is_never_counted_as_its_choice():
    selector, logits, hidden, rule = two_slots()
    found = select(logits, hidden, torch.tensor([0, 0]), torch.tensor([3, 1]), selector, rule)
    assert found.in_top_k.tolist() == [False, True], "the padding row 5 is no candidate: the top two are 0 and 1"
    assert found.choice.tolist() == [-1, 0], "the inserted label has the best score, but no server would see it"
    assert found.nll.tolist() == pytest.approx([0.0, math.log(1 + math.e)], abs=1e-5)


def test_a_padding_row_of_the_vocabulary_is_never_the_drafts_choice():
    plan = BlockPlan(
        anchors=torch.zeros(1, 1, dtype=torch.int64), keep=torch.ones(1, 1, dtype=torch.bool),
        block_ids=torch.zeros(1, 1, 3, dtype=torch.int64), positions=torch.arange(3)[None, None],
        valid=torch.ones(1, 1, 2, dtype=torch.bool), weights=torch.ones(1, 1, 2),
    )  # fmt: skip
    _, logits, _, rule = two_slots()
    hidden, labels = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 2, dtype=torch.int64)
    _, sums = block_loss(hidden, labels, plan, lambda h: logits[: len(h)], None, rule, torch.tensor(2.0))
    assert float(sums.correct) == float(sums.base_correct) == 2.0
