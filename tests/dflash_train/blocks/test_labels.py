"""target_argmax (specification 3.7): the label of t is what the target says after t-1."""

import torch

from dflash_train.blocks.labels import target_argmax_ids
from tests.dflash_train.tiny import text_batch, tiny_target


def test_labels_are_the_targets_greedy_tokens_one_position_before():
    target, batch = tiny_target(), text_batch()
    reading = target.read(batch, (1,), want_hidden=True)
    ids = target_argmax_ids(batch, reading.hidden, target.logits, target.token_limit)
    said = target.logits(reading.hidden)[..., : target.token_limit].argmax(-1)
    changed = 0
    for row in range(batch.input_ids.shape[0]):
        for t in range(batch.input_ids.shape[1]):
            wanted = said[row, t - 1] if batch.loss_mask[row, t] and t > 0 else batch.input_ids[row, t]
            assert int(ids[row, t]) == int(wanted)
            changed += int(ids[row, t] != batch.input_ids[row, t])
    assert changed > 10, "a random target disagrees with random text"


def test_padding_rows_of_the_vocabulary_never_win():
    target, batch = tiny_target(), text_batch()
    hidden = torch.randn(2, batch.input_ids.shape[1], target.hidden_size)
    ids = target_argmax_ids(batch, hidden, lambda h: torch.eye(97)[[96] * len(h)], token_limit=95)
    assert int(ids.max()) < 95


def test_the_first_position_keeps_its_token():
    batch = text_batch(prompt=0)
    ids = target_argmax_ids(batch, torch.zeros(2, 24, 4), lambda h: torch.zeros(len(h), 97), 95)
    assert ids[:, 0].equal(batch.input_ids[:, 0])
