"""Rows: where the audio stands, what is supervised, and the way back to the text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_train.data.collate import collate
from dflash_train.data.cuts import Utterance
from dflash_train.data.manifest import open_manifest
from dflash_train.data.prompt import split_template
from dflash_train.data.tokenizer import AUDIO, PROMPT
from dflash_train.errors import ConfigError, DataError
from dflash_train.recipes.salm import facts_of
from dflash_train.target.speech_lm import prompt_of
from tests.dflash_train import tiny


@pytest.fixture
def prompt():
    words = tiny.tiny_tokenizer()
    return prompt_of(facts_of(words, 16), words)


def utterance(text: str, num_samples: int = 16000) -> Utterance:
    return Utterance("u", text, num_samples, "train", ())


@pytest.mark.parametrize("text", ["one", "please hold the number is not valid", "zebra's quick fox"])
def test_a_row_is_prefix_audio_suffix_text_end(prompt, text):
    row = prompt.row(utterance(text))
    frames = prompt.num_frames(16000)
    special = prompt.tokenizer.convert_tokens_to_ids
    assert row.ids[0] == special("<bos>")
    assert row.audio_mask.tolist() == [False] + [True] * frames + [False] * (len(row.ids) - frames - 1)
    assert set(row.ids[row.audio_mask]) == {prompt.pad_id}
    assert row.ids[1 + frames] == special("<text>")
    assert row.ids[-1] == prompt.eos_id


@pytest.mark.parametrize("text", ["one", "please hold the number is not valid", "zebra's quick fox"])
def test_the_supervised_tokens_are_the_text_and_the_end_and_nothing_else(prompt, text):
    row = prompt.row(utterance(text))
    supervised = row.ids[row.loss_mask].tolist()
    assert prompt.transcript(supervised, (prompt.eos_id,)) == text
    assert supervised == [*prompt.text_ids(text), prompt.eos_id]
    assert not (row.loss_mask & row.audio_mask).any()


def test_what_stands_behind_the_end_token_is_no_transcript(prompt):
    ids = [*prompt.text_ids("one two"), prompt.eos_id, *prompt.text_ids("four")]
    assert prompt.transcript(ids, (prompt.eos_id,)) == "one two"


def test_capitals_are_written_in_lower_case(prompt):
    assert prompt.text_ids("Please HOLD") == prompt.text_ids("please hold")


@pytest.mark.parametrize(
    ("text", "num_samples", "words"),
    [("naïve", 16000, "cannot write"), ("one", 399, "at least 400"), ("", 16000, "cannot write")],
)
def test_a_row_that_cannot_be_is_refused_by_its_id(prompt, text, num_samples, words):
    with pytest.raises(DataError, match=f"^u: .*{words}"):
        prompt.row(utterance(text, num_samples))


@pytest.mark.parametrize("template", ["<bos>", f"{AUDIO}{AUDIO}"])
def test_a_template_has_one_audio_tag(template):
    with pytest.raises(ConfigError, match="exactly once"):
        split_template(template, AUDIO, tiny.tiny_tokenizer())


def test_placeholders_are_never_produced_and_have_no_id_of_a_letter(prompt):
    facts = facts_of(prompt.tokenizer, 16)
    assert PROMPT.count(AUDIO) == 1
    assert facts.token_limit <= facts.mask_token_id < len(prompt.tokenizer)
    assert all(token < facts.token_limit for token in prompt.text_ids("abcdefghijklmnopqrstuvwxyz '"))
    assert facts.eos_ids == (0,)


def test_a_batch_is_right_padded(tmp_path, prompt):
    manifest = open_manifest(tiny.tiny_utterances(tmp_path))
    batch = collate(manifest, [4, 0, 7], [10, 11, 12], prompt)
    assert batch.rows.tolist() == [10, 11, 12]
    for place, line in enumerate([4, 0, 7]):
        row, length = prompt.row(manifest.utterance(line)), int(batch.token_mask[place].sum())
        assert batch.ids[place] == manifest.utterance(line).id
        assert batch.input_ids[place, :length].tolist() == row.ids.tolist()
        assert (batch.input_ids[place, length:] == prompt.pad_id).all()
        assert not batch.loss_mask[place, length:].any()
        assert not batch.audio_mask[place, length:].any()
        assert batch.loss_mask[place, :length].tolist() == row.loss_mask.tolist()
        samples = int(batch.audio_samples[place])
        np.testing.assert_array_equal(batch.audio[place, :samples].numpy(), manifest.samples(line))
        assert not batch.audio[place, samples:].any()
    assert batch.input_ids.dtype == torch.int64
    assert batch.audio.dtype == torch.float32
