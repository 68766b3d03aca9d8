"""What the draft's trainer and the decoder may ask of a target, and nothing more.

A target is the frozen model that verifies: a text LLM, or a speech LLM whose prompt holds audio frames. Letters of
shapes: records.py. Two kinds of use:

    read(batch)                      one teacher-forced pass over a right-padded batch (training, replay)
    start, extend, crop              one row with a KV cache (decoding)

Decoding, in the words of the specification (6.1): `start` reads the P0 positions of the prompt; its `logits` choose
the first token, which is *not* in the cache yet. Each `extend(state, ids)` appends n tokens and returns what the target
says after each of them; `crop(state, start)` then drops the rejected ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dflash_train.records import Batch, TargetReading
from dflash_train.target.cache import KVCache


@dataclass(frozen=True)
class TargetIds:
    """The special ids of a target's vocabulary.

    token_limit: ids from here on never are an answer's token (padding rows, placeholders): no argmax may choose them.
    mask_token_id: None if the target's folder names none and its vocabulary has no row to spare.
    """

    pad_id: int
    eos_ids: tuple[int, ...]
    token_limit: int
    mask_token_id: int | None


@dataclass(frozen=True)
class DecodeState:
    """One row in decoding. `cache` grows with `extend` and shrinks with `crop`; the rest is of the prompt.

    logits: [1, V], after the prompt's last position.
    taps: [1, P0, T*H] of the prompt's positions.
    """

    cache: KVCache
    tap_ids: tuple[int, ...]
    logits: Tensor
    taps: Tensor

    @property
    def length(self) -> int:
        """Tokens in the cache, audio frames included."""
        return self.cache.length


class Target(Protocol):
    """A frozen model that verifies. Every method runs without gradients for the target's own weights."""

    hidden_size: int
    num_layers: int
    vocab_size: int  # rows of the embedding and of the head
    token_limit: int  # see TargetIds
    pad_id: int
    eos_ids: tuple[int, ...]
    llm_config: Any  # the Hugging Face config of the causal LM
    embedding_scale: float  # factor between the embedding table and what the first layer sees; `embed` applies it
    output_multiplier: float  # factor between the head's product and the logits; `logits` applies it

    @property
    def mask_token_id(self) -> int:
        """An id that is never produced. Raises TargetError if the target has none."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def head_weight(self) -> Tensor:
        """[V, H]."""

    def read(self, batch: Batch, tap_ids: Sequence[int], want_hidden: bool) -> TargetReading:
        """Taps (ascending order of layer) and, if wanted, the hidden states after the final norm. No gradients."""

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [...] -> [..., H]: the target's own embedding as its first layer sees it (scaled if it scales)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] after the final norm -> [..., V]: the target's own head and logit transform. Differentiable."""

    def prompt_embeds(self, batch: Batch, row: int) -> Tensor:
        """[1, P0, H]: what `start` takes; the positions of `row` before its first supervised token."""

    def start(self, prompt_embeds: Tensor, tap_ids: Sequence[int]) -> DecodeState:
        """Reads the prompt into a new KV cache."""

    def extend(self, state: DecodeState, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Appends ids int64 [1, n]; returns logits [1, n, V] after each and taps [1, n, T*H] of each."""

    def crop(self, state: DecodeState, length: int) -> None:
        """Keeps the first `length` tokens of the cache."""


def argmax_tokens(logits: Tensor, token_limit: int) -> Tensor:
    """[..., V] -> int64 [...]: the greedy token among the ids that an answer may hold."""
    return logits[..., :token_limit].argmax(dim=-1)


def answer_start(batch: Batch, row: int) -> int:
    """Position of the first supervised token of a row: the prompt's length P0. -1 if the row has none."""
    supervised = batch.loss_mask[row].nonzero()
    return int(supervised[0]) if len(supervised) else -1
