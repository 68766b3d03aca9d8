"""Word error rate: counted over the set, on what the target says greedily."""

from __future__ import annotations

import pytest
import torch

from dflash_train.data.loader import EvalData
from dflash_train.data.manifest import open_manifest
from dflash_train.errors import DataError
from dflash_train.evaluate.speech import greedy_answer, transcribe, word_errors
from dflash_train.target.base import argmax_tokens
from tests.dflash_train import tiny


@pytest.mark.parametrize(
    ("pairs", "wanted", "rate"),
    [
        ([("a b c", "a b c")], (3, 0, 0, 0, 0), 0.0),
        ([("A b", "a B")], (2, 0, 0, 0, 0), 0.0),
        ([("a b c d", "a x c")], (4, 0, 1, 1, 0), 0.5),
        ([("a b", "a b c d")], (2, 2, 0, 0, 0), 1.0),
        ([("a b", ""), ("c d e f g h", "c d e f g h")], (8, 0, 2, 0, 1), 0.25),
    ],
)
def test_errors_are_summed_over_the_set(pairs, wanted, rate):
    errors = word_errors([said for said, _ in pairs], [heard for _, heard in pairs])
    assert (errors.words, errors.insertions, errors.deletions, errors.substitutions, errors.empty) == wanted
    assert errors.rate == pytest.approx(rate)
    assert errors.utterances == len(pairs)


def test_an_empty_set_has_no_rate():
    with pytest.raises(DataError, match="no transcript"):
        word_errors([], [])


def test_an_answer_is_the_argmax_of_its_own_beginning(tmp_path):
    speech_lm = tiny.tiny_speech_lm(tmp_path)
    manifest = open_manifest(tiny.tiny_utterances(tmp_path))
    target, batch = speech_lm.target(), next(EvalData(manifest, speech_lm.prompt(), 1).batches())
    answer = greedy_answer(target, batch, 0, max_new_tokens=9)
    prompt = target.prompt_embeds(batch, 0)
    for place, token in enumerate(answer):
        known = target.llm.get_input_embeddings()(torch.tensor([answer[:place]], dtype=torch.int64))
        hidden = target.decoder(inputs_embeds=torch.cat([prompt, known], 1), use_cache=False).last_hidden_state
        assert int(argmax_tokens(target.logits(hidden[0, -1]), target.token_limit)) == token
    assert len(answer) == 9 or answer[-1] in target.eos_ids


def test_transcripts_come_in_order_with_their_references(tmp_path):
    speech_lm = tiny.tiny_speech_lm(tmp_path)
    manifest = open_manifest(tiny.tiny_utterances(tmp_path))
    found = list(transcribe(speech_lm.target(), speech_lm.prompt(), manifest, max_new_tokens=3, limit=4))
    utterances = [manifest.utterance(line) for line in range(4)]
    assert [(t.id, t.reference) for t in found] == [(u.id, u.text) for u in utterances]
    assert all(len(t.ids) <= 3 for t in found)
