"""One row: [prefix ids][audio placeholders][suffix ids][text ids][eos], and which of them are supervised.

The prompt is a template like "<bos><audio><text>": what stands before the audio tag is the prefix, what stands behind
it the suffix. Only the text and the end token are supervised; the loss mask is never shifted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_train.data.cuts import Utterance
from dflash_train.errors import ConfigError, DataError


@dataclass(frozen=True)
class Row:
    """ids int64 [S] with pad ids where audio frames stand; loss_mask and audio_mask bool [S]."""

    ids: np.ndarray
    loss_mask: np.ndarray
    audio_mask: np.ndarray


@dataclass(frozen=True)
class Prompt:
    """How an utterance becomes a row.

    num_frames: audio samples -> frames that the target's encoder makes of them; raises DataError if there are none.
    """

    tokenizer: Any
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int
    eos_id: int
    num_frames: Callable[[int], int]

    def text_ids(self, text: str) -> list[int]:
        """Ids of a text, no special ones among them."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def row(self, utterance: Utterance) -> Row:
        """Raises DataError if the tokenizer cannot write the text, or if the audio is too short for one frame."""
        text = self.text_ids(utterance.text)
        unknown = self.tokenizer.unk_token_id
        if not text or (unknown is not None and unknown in text):
            raise DataError(f"{utterance.id}: the tokenizer cannot write {utterance.text!r}")
        try:
            frames = self.num_frames(utterance.num_samples)
        except DataError as error:
            raise DataError(f"{utterance.id}: {error}") from None
        answer = len(self.prefix) + frames + len(self.suffix)
        ids = np.array([*self.prefix, *[self.pad_id] * frames, *self.suffix, *text, self.eos_id], dtype=np.int64)
        place = np.arange(len(ids))
        return Row(
            ids=ids,
            loss_mask=place >= answer,
            audio_mask=(place >= len(self.prefix)) & (place < len(self.prefix) + frames),
        )

    def num_tokens(self, utterance: Utterance) -> int:
        """Positions of the utterance's row, audio frames included."""
        return len(self.row(utterance).ids)

    def transcript(self, ids: list[int], eos_ids: tuple[int, ...]) -> str:
        """The text of an answer's ids up to its end token."""
        end = next((place for place, token in enumerate(ids) if token in eos_ids), len(ids))
        text: str = self.tokenizer.decode(ids[:end], skip_special_tokens=True)
        return text.strip()


def split_template(template: str, audio_tag: str, tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and behind the one audio tag of a template. Raises ConfigError if there is not exactly one."""
    parts = template.split(audio_tag)
    if len(parts) != 2:
        raise ConfigError(f"prompt {template!r} must hold {audio_tag} exactly once, seen {len(parts) - 1} times")
    before, behind = (tuple(tokenizer.encode(part, add_special_tokens=False)) if part else () for part in parts)
    return before, behind
