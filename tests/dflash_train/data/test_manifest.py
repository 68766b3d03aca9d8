"""A manifest is checked line by line before anything runs, and works from any folder."""

from __future__ import annotations

import ast
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

import dflash_train
from dflash_train.data.cuts import clip_cut, splice, write_cuts
from dflash_train.data.manifest import open_manifest
from dflash_train.errors import DataError
from tests.dflash_train import tiny


def rewrite(path: Path, change) -> None:
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    change(rows)
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def test_rows_have_their_text_and_their_audio(tmp_path):
    manifest = open_manifest(tiny.tiny_clips(tmp_path))
    assert [u.text for u in manifest.utterances()] == list(tiny.WORDS)
    np.testing.assert_allclose(manifest.samples(2), tiny.tone(2, 6600), atol=1e-4)


def test_paths_are_relative_to_the_manifest_whatever_the_working_directory(tmp_path, monkeypatch):
    path = tiny.tiny_clips(tmp_path / "here")
    moved = tmp_path / "there"
    path.parent.rename(moved)
    monkeypatch.chdir(moved.parent)
    manifest = open_manifest(Path("there") / path.name)
    monkeypatch.chdir("/")
    assert len(manifest.samples(0)) == manifest.utterance(0).num_samples


def test_an_indexed_manifest_gives_the_same_rows(tmp_path):
    packed = open_manifest(tiny.tiny_utterances(tmp_path))
    plain = open_manifest(tiny.tiny_utterances(tmp_path, suffix=".jsonl"))
    assert list(packed.utterances()) == list(plain.utterances())
    np.testing.assert_array_equal(packed.samples(3), plain.samples(3))


def test_an_old_index_is_made_again(tmp_path):
    path = tiny.tiny_utterances(tmp_path, suffix=".jsonl")
    assert len(open_manifest(path)) == 12
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
    os.utime(path, (path.stat().st_mtime + 10,) * 2)
    assert len(open_manifest(path)) == 5


def test_a_splice_is_its_clips_with_silence_between(tmp_path):
    tiny.tiny_clips(tmp_path)
    clips = [clip_cut(f"c{i}", f"clips/{i}.flac", 4800 + 900 * i, tiny.WORDS[i], "train") for i in (1, 0, 4)]
    write_cuts(tmp_path / "one.jsonl.gz", [splice("u", clips, [320, 1600])])
    manifest = open_manifest(tmp_path / "one.jsonl.gz")
    parts = [soundfile.read(tmp_path / "clips" / f"{i}.flac", dtype="float32")[0] for i in (1, 0, 4)]
    silence = [np.zeros(320, "float32"), np.zeros(1600, "float32")]
    wanted = np.concatenate([parts[0], silence[0], parts[1], silence[1], parts[2]])
    assert manifest.utterance(0).text == "two one please hold"
    assert manifest.utterance(0).num_samples == len(wanted)
    np.testing.assert_array_equal(manifest.samples(0), wanted)


FAULTS = {
    "no text": (lambda rows: rows[2]["supervisions"][0].update(text="  "), ":3: clip-2: no text"),
    "rate": (lambda rows: rows[1]["recording"].update(sampling_rate=8000), ":2: clip-1: .*16000 Hz is needed"),
    "no recording": (lambda rows: rows[0].pop("recording"), ":1: "),
    "lost recording": (
        lambda rows: rows[4]["recording"]["sources"][0].update(source="clips/no.flac"),
        ":5: clip-4: .*no.flac",
    ),
    "same id": (lambda rows: rows[3].update(id="clip-0"), ":4: clip-0 is the id of line 1 too"),
    "no cut": (lambda rows: rows.insert(1, {"a": 1}), ":2: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_line_is_named(tmp_path, fault):
    path = tiny.tiny_clips(tmp_path)
    change, words = FAULTS[fault]
    rewrite(path, change)
    with pytest.raises(DataError, match=words) as seen:
        open_manifest(path)
    assert "\n" not in str(seen.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl.gz", None, "does not exist"),
        ("a.jsonl.gz", b"not gzip", "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0), "holds no cut"),
        ("a.jsonl.gz", gzip.compress(b"{]\n", mtime=0), ":1: "),
    ],
)
def test_a_file_that_is_no_manifest_gets_one_line(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        open_manifest(tmp_path / name)


def test_audio_that_is_not_what_the_manifest_says_is_refused(tmp_path):
    manifest = open_manifest(tiny.tiny_clips(tmp_path))
    (tmp_path / "clips" / "0.flac").write_bytes(b"junk")
    with pytest.raises(DataError, match=r":1: clip-0: "):
        manifest.samples(0)
    soundfile.write(tmp_path / "clips" / "1.flac", tiny.tone(1, 1000), 16000)
    with pytest.raises(DataError, match=r":2: clip-1: "):
        manifest.samples(1)


def test_lhotse_lives_behind_one_module():
    root = Path(dflash_train.__file__).parent
    users = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "lhotse" for name in names):
                users.add(path.relative_to(root).as_posix())
    assert users == {"data/cuts.py"}
