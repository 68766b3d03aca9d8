"""The speech verbs: what they print, and one line for what they cannot do."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dflash_train.cli import main
from dflash_train.data.manifest import open_manifest
from tests.dflash_train import tiny


def run(*words: object):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def made(tmp_path):
    """A folder with clips and a tokenizer made of them by the command."""
    clips = tiny.tiny_clips(tmp_path)
    result = run("tokenizer", clips, tmp_path / "tokenizer", "--vocab", 64)
    assert result.exit_code == 0, result.output
    return tmp_path


def compose(folder, *options: object):
    tokenizer = ("--tokenizer", folder / "tokenizer") if (folder / "tokenizer").is_dir() else ()
    return run("compose", folder / "clips.jsonl.gz", folder / "set.jsonl.gz", *tokenizer, *options)


def test_clips_become_a_tokenizer_and_a_set(made):
    result = compose(made, "--count", 5, "--tokens", "5-16")
    assert result.exit_code == 0, result.output
    assert len(open_manifest(made / "set.jsonl.gz")) == 5


def test_a_set_is_measured(made):
    compose(made, "--count", 3, "--tokens", "5-16")
    tiny.tiny_speech_lm(made).save(made / "speech_lm")
    words = ("wer", made / "speech_lm", made / "set.jsonl.gz", "--max-new-tokens", 4)
    assert "WER" in run(*words).output
    found = json.loads(run(*words, "--json").output)
    assert (found["utterances"], found["rate"] > 0) == (3, True)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--count", 5, "--tokens", "40-15"), 2, "LOW-HIGH"),
        (("--count", 0), 2, "--count"),
        (("--count", 5, "--split", "heldout"), 4, "0 clips of the split 'heldout'"),
        (("--count", 5000, "--tokens", "5-6"), 4, "use more clips or fewer rows"),
    ],
)
def test_what_cannot_be_composed_is_one_line(made, options, code, words):
    result = compose(made, *options)
    assert result.exit_code == code
    assert words in result.output
    assert "Traceback" not in result.output
    assert not (made / "set.jsonl.gz").exists()


def test_a_text_llm_has_no_word_error_rate(made):
    compose(made, "--count", 3, "--tokens", "5-16")
    tiny.tiny_llm().save_pretrained(made / "llm")
    result = run("wer", made / "llm", made / "set.jsonl.gz")
    assert result.exit_code == 4
    assert "text LLM" in result.output
