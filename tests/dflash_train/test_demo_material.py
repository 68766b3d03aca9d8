"""The demo's material keeps what its README promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_train.data.manifest import open_manifest
from dflash_train.evaluate.speech import transcribe, word_errors
from dflash_train.target.load import load_target
from dflash_train.target.strict import load_tokenizer

DEMO = Path(__file__).parents[2] / "experiments" / "demo"
SETS = {"train": "train", "unseen": "train", "heldout": "heldout"}


@pytest.fixture(scope="module")
def clips():
    return {u.sources[0]: u for u in open_manifest(DEMO / "clips.jsonl.gz").utterances()}


@pytest.fixture(scope="module")
def sets():
    return {name: list(open_manifest(DEMO / f"{name}.jsonl.gz").utterances()) for name in SETS}


@pytest.fixture(scope="module")
def loaded():
    return load_target(DEMO / "speech_lm")


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_spliced_from_recordings_of_its_own_split_alone(clips, sets, name):
    for utterance in sets[name]:
        assert {clips[source].split for source in utterance.sources} == {SETS[name]}
        assert len(utterance.sources) > 1
        assert utterance.text == " ".join(clips[source].text for source in utterance.sources)


def test_no_text_is_on_both_sides_of_the_split(clips):
    texts = {split: {u.text for u in clips.values() if u.split == split} for split in ("train", "heldout")}
    assert not texts["train"] & texts["heldout"]
    assert {split: len(found) for split, found in texts.items()} == {"train": 132, "heldout": 32}


def test_no_unseen_composition_is_in_the_training_set(sets):
    assert not {u.text for u in sets["unseen"]} & {u.text for u in sets["train"]}


@pytest.mark.parametrize("name", SETS)
def test_utterances_have_15_to_40_tokens(sets, name):
    tokenizer = load_tokenizer(DEMO / "tokenizer")
    assert all(15 <= len(tokenizer.encode(u.text)) <= 40 for u in sets[name])


def test_the_folder_is_small_and_carries_its_licence():
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file()) <= 9_000_000
    assert "Allison Smith" in (DEMO / "LICENSES").read_text("utf-8")


def test_the_speech_llm_has_the_demos_tokenizer_and_layers_enough_to_tap(loaded):
    vocabulary = load_tokenizer(DEMO / "tokenizer").get_vocab()
    assert loaded.prompt.tokenizer.get_vocab() == vocabulary
    assert loaded.target.num_layers >= 6
    assert loaded.target.token_limit <= loaded.target.mask_token_id < loaded.target.vocab_size


def test_the_speech_llm_transcribes_unseen_compositions(loaded):
    found = list(transcribe(loaded.target, loaded.prompt, open_manifest(DEMO / "unseen.jsonl.gz"), limit=12))
    errors = word_errors([t.reference for t in found], [t.hypothesis for t in found])
    assert errors.rate <= 0.10, [(t.reference, t.hypothesis) for t in found if t.reference != t.hypothesis]
