"""Target-only and target-with-draft decoding of the same rows, compared token by token and timed.

Rows are decoded one by one with the same prompt and limit. In fp32 the tokens must be identical; a divergence carries
the target's top-2 logit margin at the place, since a tiny margin is rounding and a large one is a fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from dflash_train.data.collate import collate
from dflash_train.data.manifest import Manifest
from dflash_train.data.prompt import Prompt
from dflash_train.decode.counters import Counters
from dflash_train.decode.greedy import Decoded, decode_alone, decode_with_draft
from dflash_train.evaluate.speech import WordErrors, word_errors
from dflash_train.model.draft import DraftModel
from dflash_train.target.causal_lm import CausalLMTarget

T = TypeVar("T")


@dataclass(frozen=True)
class Divergence:
    """Where the two decodings of a row part. margin: the target's top-2 logit gap there, or None past its end."""

    id: str
    position: int
    margin: float | None


@dataclass(frozen=True)
class SetResult:
    """One evaluation set. tokens: of the answers, end tokens included; seconds: of decoding, the prompt's pass
    included, the audio front end not."""

    name: str
    utterances: int
    tokens: int
    truncated: int
    errors: WordErrors
    counters: Counters
    seconds_alone: float
    seconds_with_draft: float
    divergences: tuple[Divergence, ...]

    @property
    def tokens_per_second_alone(self) -> float:
        return self.tokens / self.seconds_alone

    @property
    def tokens_per_second_with_draft(self) -> float:
        return self.tokens / self.seconds_with_draft


def evaluate_set(
    name: str,
    manifest: Manifest,
    prompt: Prompt,
    target: CausalLMTarget,
    draft: DraftModel,
    limit: int | None,
    seen: Callable[[], None],
) -> SetResult:
    """Decode the first `limit` rows (None: all) of a manifest both ways. `seen` is called after each row."""
    slots = draft.shape.predicted_slots
    counters, divergences = Counters.zero(slots), []
    said: list[str] = []
    meant: list[str] = []
    tokens = truncated = 0
    seconds_alone = seconds_with_draft = 0.0
    total = len(manifest) if limit is None else min(limit, len(manifest))
    for index in range(total):
        utterance = manifest.utterance(index)
        batch = collate(manifest, [index], range(1), prompt).to(target.device)
        most = longest_answer(prompt, utterance.text)
        embeds = target.prompt_embeds(batch, 0)
        alone, spent = timed(lambda: decode_alone(target, embeds, most))  # noqa: B023
        seconds_alone += spent
        (drafted, counted), spent = timed(lambda: decode_with_draft(target, draft, embeds, most, slots))  # noqa: B023
        seconds_with_draft += spent
        counters += counted
        divergences += list(divergence(utterance.id, alone, drafted))
        said.append(prompt.transcript(list(alone.tokens), target.eos_ids))
        meant.append(utterance.text)
        tokens += len(alone.tokens)
        truncated += alone.truncated
        seen()
    return SetResult(
        name, total, tokens, truncated, word_errors(meant, said), counters, seconds_alone, seconds_with_draft,
        tuple(divergences),
    )  # fmt: skip


def longest_answer(prompt: Prompt, text: str) -> int:
    """Most new tokens of an answer: twice the reference and some, so that a target that rambles is seen to."""
    return 2 * len(prompt.text_ids(text)) + 16


def divergence(id: str, alone: Decoded, drafted: Decoded) -> Iterator[Divergence]:
    """The first place where the tokens differ, if there is one."""
    if alone.tokens == drafted.tokens:
        return
    pairs = zip(alone.tokens, drafted.tokens, strict=False)
    shorter = min(len(alone.tokens), len(drafted.tokens))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    yield Divergence(id, position, alone.margins[position] if position < len(alone.margins) else None)


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """The call's result and how long it took, in seconds."""
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began
