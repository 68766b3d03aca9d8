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
ALONE, RISEN = 0.25, 0.65  # of a curriculum: where the shortest end, and where the full length is reached


@dataclass(frozen=True)
class Bounds:
    """Of one utterance. clips: fewest; low, high: tokens; clips are added up to an aim between low and longest_aim."""

    clips: int
    low: int
    longest_aim: int
    high: int


@dataclass(frozen=True)
class Composition:
    """What to compose. tokens: fewest and most of an utterance; excluded: texts that are not made.

    rising: a curriculum, to be read in the manifest's order: the shortest utterances first (single clips, if `tokens`
    allows them), then longer and longer ones. Its texts may recur, where those of another set never do.
    """

    count: int
    split: str
    tokens: tuple[int, int] = (15, 40)
    seed: int = 0
    excluded: frozenset[str] = field(default_factory=frozenset)
    rising: bool = False

    def bounds(self, index: int) -> Bounds:
        """What utterance `index` must keep to."""
        low, high = self.tokens
        if not self.rising:
            return Bounds(clips=2, low=low, longest_aim=high, high=high)
        ramp = min(1.0, max(0.0, (index / self.count - ALONE) / (RISEN - ALONE)))
        return Bounds(clips=1, low=low, longest_aim=low + round((high - low) * ramp), high=high)


def compose(
    clips: Path,
    out: Path,
    plan: Composition,
    count_tokens: Callable[[str], int],
    seen: Callable[[], None] = lambda: None,
) -> int:
    """Writes a manifest of `plan.count` spliced utterances to `out`; returns how many different clips they use.

    `seen` is called after each utterance.

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
        chosen = draw(pool, plan.bounds(index), count_tokens, pick, texts)
        if not plan.rising:
            texts.add(joined(chosen))
        used.update(clip.id for clip in chosen)
        gaps = [16 * pick.randrange(GAP_SAMPLES[0] // 16, GAP_SAMPLES[1] // 16) for _ in chosen[1:]]
        made.append(splice(f"{plan.split}-{plan.seed}-{index:05d}", chosen, gaps))
        seen()
    write_cuts(out, made)
    return len(used)


def joined(clips: Sequence[MonoCut]) -> str:
    """The text of the clips, said one after the other."""
    return " ".join(clip.supervisions[0].text for clip in clips)


def draw(
    pool: Sequence[MonoCut],
    bounds: Bounds,
    count_tokens: Callable[[str], int],
    pick: random.Random,
    texts: set[str],
) -> list[MonoCut]:
    """Clips, none twice, whose text is new and within the bounds."""
    for _ in range(ATTEMPTS):
        aim = pick.randint(bounds.low, bounds.longest_aim)
        chosen: list[MonoCut] = []
        for clip in pick.sample(list(pool), len(pool)):
            if count_tokens(joined([*chosen, clip])) <= bounds.high:
                chosen.append(clip)
            if len(chosen) >= bounds.clips and count_tokens(joined(chosen)) >= aim:
                break
        tokens = count_tokens(joined(chosen))
        if len(chosen) >= bounds.clips and tokens >= bounds.low and joined(chosen) not in texts:
            return chosen
    wanted = f"{bounds.low}-{bounds.high} tokens"
    raise DataError(f"no new utterance of {wanted} in {ATTEMPTS} attempts: use more clips or fewer rows")
