"""Utterances spliced from short clips: exact text, small silences, a length in tokens that is asked for.

Utterance i is a function of (seed, split, i) and the clips alone, so a set can be made again to the byte.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash_train.data.cuts import MonoCut, moved, splice, write_cuts
from dflash_train.data.manifest import open_manifest
from dflash_train.errors import DataError

GAP_SAMPLES = (320, 3200)  # 20 to 200 ms
ATTEMPTS = 200


@dataclass(frozen=True)
class Composition:
    """What to compose. tokens: fewest and most of an utterance; excluded: texts that are not made."""

    count: int
    split: str
    tokens: tuple[int, int] = (15, 40)
    seed: int = 0
    excluded: frozenset[str] = field(default_factory=frozenset)


def compose(clips: Path, out: Path, plan: Composition, count_tokens: Callable[[str], int]) -> int:
    """Writes a manifest of `plan.count` spliced utterances to `out`; returns how many different clips they use.

    Raises DataError if the clips of the split cannot make such utterances.
    """
    manifest = open_manifest(clips)
    pool = []
    for index, utterance in enumerate(manifest.utterances()):
        if utterance.split == plan.split:
            pool.append(moved(manifest.file.cut(index), os.path.relpath(utterance.sources[0], out.resolve().parent)))
    if len(pool) < 2:
        raise DataError(f"{clips}: {len(pool)} clips of the split {plan.split!r}, at least two are needed")
    made, texts = [], set(plan.excluded)
    used: set[str] = set()
    for index in range(plan.count):
        pick = random.Random(f"{plan.seed} {plan.split} {index}")
        chosen = draw(pool, plan, count_tokens, pick, texts)
        texts.add(joined(chosen))
        used.update(clip.id for clip in chosen)
        gaps = [16 * pick.randrange(GAP_SAMPLES[0] // 16, GAP_SAMPLES[1] // 16) for _ in chosen[1:]]
        made.append(splice(f"{plan.split}-{plan.seed}-{index:05d}", chosen, gaps))
    write_cuts(out, made)
    return len(used)


def joined(clips: Sequence[MonoCut]) -> str:
    """The text of the clips, said one after the other."""
    return " ".join(clip.supervisions[0].text for clip in clips)


def draw(
    pool: Sequence[MonoCut], plan: Composition, count_tokens: Callable[[str], int], pick: random.Random,
    texts: set[str],
) -> list[MonoCut]:
    """Two clips or more, none twice, whose text is new and has a number of tokens within the plan's bounds."""
    low, high = plan.tokens
    for _ in range(ATTEMPTS):
        aim = pick.randint(low, high)
        chosen: list[MonoCut] = []
        for clip in pick.sample(list(pool), len(pool)):
            if count_tokens(joined([*chosen, clip])) <= high:
                chosen.append(clip)
            if len(chosen) > 1 and count_tokens(joined(chosen)) >= aim:
                break
        if len(chosen) > 1 and low <= count_tokens(joined(chosen)) <= high and joined(chosen) not in texts:
            return chosen
    raise DataError(f"no new utterance of {low}-{high} tokens in {ATTEMPTS} attempts: use more clips or fewer rows")
