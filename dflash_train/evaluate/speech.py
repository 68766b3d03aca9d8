"""Word error rate of a speech LLM: greedy transcripts against a manifest's texts.

Words are lower-cased and split at spaces. Errors are counted by jiwer; the rate is summed errors over summed reference
words, never a mean of rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jiwer
import torch

from dflash_train.data.loader import EvalData
from dflash_train.data.manifest import Manifest
from dflash_train.data.prompt import Prompt
from dflash_train.errors import DataError
from dflash_train.records import Batch
from dflash_train.target.base import Target, argmax_tokens


@dataclass(frozen=True)
class Transcript:
    """What one utterance should have been and what the target heard. ids: the answer's tokens, end token included."""

    id: str
    reference: str
    hypothesis: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class WordErrors:
    """Counts over a set. `empty`: utterances that the target gave no word for."""

    utterances: int
    words: int
    insertions: int
    deletions: int
    substitutions: int
    empty: int

    @property
    def rate(self) -> float:
        """Word error rate; above 1 when there are more errors than words."""
        return (self.insertions + self.deletions + self.substitutions) / self.words


def greedy_answer(target: Target, batch: Batch, row: int, max_new_tokens: int) -> list[int]:
    """The target's own answer: token after token with a KV cache, up to and with an end token."""
    state = target.start(target.prompt_embeds(batch, row), [])
    token = argmax_tokens(state.logits, target.token_limit)
    answer = [int(token)]
    while answer[-1] not in target.eos_ids and len(answer) < max_new_tokens:
        logits, _ = target.extend(state, token.view(1, 1))
        token = argmax_tokens(logits[:, -1], target.token_limit)
        answer.append(int(token))
    return answer


def transcribe(
    target: Target,
    prompt: Prompt,
    manifest: Manifest,
    max_new_tokens: int = 128,
    limit: int | None = None,
) -> Iterator[Transcript]:
    """Greedy transcripts in the order of the manifest, one utterance at a time."""
    for line, batch in enumerate(EvalData(manifest, prompt, batch_size=1).batches(limit)):
        answer = greedy_answer(target, batch.to(torch.device(target.device)), 0, max_new_tokens)
        yield Transcript(
            id=batch.ids[0],
            reference=manifest.utterance(line).text,
            hypothesis=prompt.transcript(answer, target.eos_ids),
            ids=tuple(answer),
        )


def word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> WordErrors:
    """Counts the errors of a set of utterances. Raises DataError if it is empty."""
    if not references:
        raise DataError("no transcript to count the errors of")
    found = jiwer.process_words([text.lower() for text in references], [text.lower() for text in hypotheses])
    return WordErrors(
        utterances=len(references),
        words=found.hits + found.substitutions + found.deletions,
        insertions=found.insertions,
        deletions=found.deletions,
        substitutions=found.substitutions,
        empty=sum(not text.split() for text in hypotheses),
    )
