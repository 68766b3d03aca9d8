"""Makes clips/*.flac and clips.jsonl.gz of this folder from Debian's asterisk-core-sounds-en (README.md here says how).

    python experiments/demo/select_clips.py FOLDER

FOLDER holds the package's G.722 prompts decoded to 16 kHz and a manifest.jsonl, one object a line: id, audio_path
(relative to it), text, clean (the text is letters and plain punctuation only, so it is what is said), split (by
recording: "train", or "eval" for the held-out ones; recordings of one text are never on both sides).

Changes to the recordings: silence trimmed to 50 ms before and 100 ms after the speech, samples rounded to 13 bits
(-78 dB, below the noise of the G.722 codec), which saves 30 % of the room.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import soundfile

from dflash_train.data.cuts import clip_cut, describe, write_cuts

RATE = 16000
SPEECH = 0.01  # of full scale
LEAD, TAIL = 800, 1600  # samples
SPLITS = {"train": ("train", 3.0), "eval": ("heldout", 4.0)}  # name here, longest clip in seconds


def spoken(text: str) -> str:
    """Lower-cased words: letters and apostrophes, separated by one space."""
    return " ".join(re.sub(r"[^a-z' ]", " ", text.lower()).split())


def trimmed(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="int16")
    assert rate == RATE, (path, rate)
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > SPEECH * 32768)
    cut = samples[max(0, loud[0] - LEAD) : loud[-1] + TAIL].astype(np.int32)
    return (((cut + 4) >> 3) << 3).clip(-32768, 32760).astype(np.int16)


def wanted(name: str, text: str) -> bool:
    """Phrases of two words and more, and the ten digits."""
    if re.fullmatch(r"digits/[0-9]", name):
        return True
    return not name.startswith(("digits/", "letters/", "phonetic/")) and len(text.split()) > 1


def main(source: Path) -> None:
    here = Path(__file__).parent
    (here / "clips").mkdir(exist_ok=True)
    cuts, texts = [], set()
    for line in (source / "manifest.jsonl").read_text("utf-8").splitlines():
        clip = json.loads(line)
        name, text = clip["id"].removeprefix("en/"), spoken(clip["text"])
        split, longest = SPLITS[clip["split"]]
        if not clip["clean"] or text in texts or not wanted(name, text):
            continue
        samples = trimmed(source / clip["audio_path"])
        if len(samples) > longest * RATE:
            continue
        texts.add(text)
        key = name.replace("/", "-").lower()
        path = here / "clips" / f"{key}.flac"
        soundfile.write(path, samples, RATE, format="FLAC", subtype="PCM_16", compression_level=1.0)
        cuts.append(clip_cut(key, f"clips/{key}.flac", len(samples), text, split))
    write_cuts(here / "clips.jsonl.gz", cuts)
    for split, _ in SPLITS.values():
        mine = [clip for cut in cuts if (clip := describe(cut, cut.id)).split == split]
        seconds = sum(clip.num_samples for clip in mine) / RATE
        sys.stdout.write(f"{split}: {len(mine)} clips, {seconds:.0f} s\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
