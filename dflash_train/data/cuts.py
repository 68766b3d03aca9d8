"""lhotse, behind this one module: opening manifests, reading a cut's audio, making and writing cuts.

A manifest is JSON lines of MonoCuts and MixedCuts. A plain `.jsonl` is read through lhotse's index (any line in O(1),
nothing kept in memory); a `.jsonl.gz` is unpacked once and kept. Paths of recordings may be relative: they are relative
to the manifest's folder, so that a manifest works from any working directory and from a snapshot of the source.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from lhotse.cut import MixedCut, MixTrack
from lhotse.indexing import IndexedJsonlReader
from lhotse.serialization import deserialize_item

from dflash_train.errors import DataError

SAMPLE_RATE = 16000
# lhotse mirrors up to half a second of audio where a recording is shorter than its manifest says. Seconds; a
# wider tolerance can be asked for through the same variable.
os.environ.setdefault("LHOTSE_AUDIO_DURATION_MISMATCH_TOLERANCE", "0.001")
Cut: TypeAlias = MonoCut | MixedCut


@dataclass(frozen=True)
class Utterance:
    """What is known of a cut without reading its audio. num_samples at 16 kHz; split is "" where none is given."""

    id: str
    text: str
    num_samples: int
    split: str
    sources: tuple[str, ...]


class CutsFile:
    """An open manifest: cut i is line i + 1."""

    def __init__(self, path: Path) -> None:
        """Raises DataError if the file is missing, empty, or not JSON lines."""
        if not path.is_file():
            raise DataError(f"{path} does not exist: a lhotse cuts manifest (.jsonl or .jsonl.gz) is needed")
        self.path = path
        self._folder = path.resolve().parent
        self._indexed: Any | None = None
        self._lines: list[str] = []
        if path.suffix == ".jsonl":
            self._indexed = IndexedJsonlReader(path, index_path=fresh_index(path))
        else:
            self._lines = list(read_lines(path))
        if not len(self):
            raise DataError(f"{path} holds no cut")

    def __len__(self) -> int:
        return len(self._indexed) if self._indexed is not None else len(self._lines)

    def where(self, index: int) -> str:
        """file:line, for messages."""
        return f"{self.path}:{index + 1}"

    def cut(self, index: int) -> Cut:
        """The cut with absolute paths. Raises DataError with file:line if the line is no cut."""
        try:
            data = self._indexed[index] if self._indexed is not None else json.loads(self._lines[index])
            cut = deserialize_item(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{self.where(index)}: not a lhotse cut ({type(error).__name__}: {error})") from None
        if not isinstance(cut, MonoCut | MixedCut):
            raise DataError(f"{self.where(index)}: a {type(cut).__name__}, where a MonoCut or a MixedCut is needed")
        return cut.with_recording_path_prefix(self._folder)

    def utterance(self, index: int) -> Utterance:
        """Raises DataError with file:line and id if the cut has no text, no duration, no recording or another rate."""
        return describe(self.cut(index), self.where(index))

    def samples(self, index: int) -> np.ndarray:
        """float32 [A] at 16 kHz. Raises DataError if the audio cannot be read or has another length."""
        cut = self.cut(index)
        try:
            audio = cut.load_audio()
        except Exception as error:  # noqa: BLE001 - lhotse's backends raise classes of their own, some undeclared
            reason = " ".join(str(error).split())[:300]
            raise DataError(f"{self.where(index)}: {cut.id}: the audio cannot be read: {reason}") from None
        if audio is None or audio.shape != (1, cut.num_samples):
            seen = None if audio is None else audio.shape
            raise DataError(f"{self.where(index)}: {cut.id}: audio {seen}, where (1, {cut.num_samples}) is needed")
        return np.ascontiguousarray(audio[0], dtype=np.float32)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a gzipped manifest. Raises DataError."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from lines
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read as gzipped JSON lines: {error}") from None


def fresh_index(path: Path) -> Path | None:
    """None where lhotse may keep its index beside the manifest, else a place for it in the temporary folder."""
    index = path.with_name(path.name + ".idx")
    if index.exists() and index.stat().st_mtime < path.stat().st_mtime:
        index.unlink()
    if index.exists() or os.access(path.parent, os.W_OK):
        return None
    key = hashlib.sha256(f"{path.resolve()} {path.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"cuts-{os.getuid()}-{key}.idx"


def describe(cut: Cut, where: str) -> Utterance:
    """The Utterance of a cut; `where` goes into the DataErrors."""
    spoken = (s.text or "" for s in sorted(cut.supervisions, key=lambda s: s.start))
    text = " ".join(part for said in spoken if (part := said.strip()))
    parts = [track.cut for track in cut.tracks] if isinstance(cut, MixedCut) else [cut]
    recordings = [part.recording for part in parts if getattr(part, "has_recording", False)]
    if not text:
        raise DataError(f"{where}: {cut.id}: no text in its supervisions")
    if not recordings:
        raise DataError(f"{where}: {cut.id}: no recording")
    rates = {recording.sampling_rate for recording in recordings}
    if rates != {SAMPLE_RATE}:
        raise DataError(f"{where}: {cut.id}: {sorted(rates)} Hz, where {SAMPLE_RATE} Hz is needed: resample them")
    num_samples = int(cut.num_samples or 0)
    if num_samples <= 0:
        raise DataError(f"{where}: {cut.id}: duration {cut.duration} s")
    first = parts[0].custom or {}
    return Utterance(
        id=cut.id,
        text=text,
        num_samples=num_samples,
        split=str(first.get("split", "")),
        sources=tuple(s.source for r in recordings for s in r.sources if s.type == "file"),
    )


def clip_cut(clip_id: str, source: str, num_samples: int, text: str, split: str) -> MonoCut:
    """A cut of one whole mono recording at 16 kHz with one transcript."""
    duration = num_samples / SAMPLE_RATE
    recording = Recording(
        id=clip_id,
        sources=[AudioSource(type="file", channels=[0], source=source)],
        sampling_rate=SAMPLE_RATE,
        num_samples=num_samples,
        duration=duration,
    )
    supervision = SupervisionSegment(id=clip_id, recording_id=clip_id, start=0.0, duration=duration, text=text)
    return MonoCut(
        id=clip_id,
        start=0.0,
        duration=duration,
        channel=0,
        supervisions=[supervision],
        recording=recording,
        custom={"split": split},
    )


def splice(cut_id: str, clips: Sequence[MonoCut], gaps: Sequence[int]) -> MixedCut:
    """The clips one after the other; gaps: samples of silence between them, one fewer than clips."""
    tracks, start = [], 0
    for clip, gap in zip(clips, [*gaps, 0], strict=True):
        tracks.append(MixTrack(cut=clip, offset=round(start / SAMPLE_RATE, 8)))
        start += int(clip.num_samples) + gap
    return MixedCut(id=cut_id, tracks=tracks)


def moved(cut: MonoCut, source: str) -> MonoCut:
    """The clip with another path of its recording."""
    return clip_cut(cut.id, source, int(cut.num_samples), cut.supervisions[0].text, (cut.custom or {}).get("split", ""))


def write_cuts(path: Path, cuts: Iterable[Cut]) -> None:
    """Writes a manifest (.jsonl or .jsonl.gz) in one rename; the same cuts give the same bytes."""
    data = "".join(json.dumps(cut.to_dict(), ensure_ascii=False) + "\n" for cut in cuts).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    temporary.replace(path)
