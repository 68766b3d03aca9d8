"""Greedy decoding of one row: by the target alone, and with a draft that the target verifies (specification 6.1).

In fp32 both give the same tokens. In bf16 a verifying pass over several tokens may round differently than passes over
one, so divergences are reported with the target's margin there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_train.decode.counters import Counters
from dflash_train.decode.propose import DraftCache, add_context, propose
from dflash_train.model.draft import DraftModel
from dflash_train.target.base import Target, argmax_tokens


@dataclass(frozen=True)
class Decoded:
    """tokens: the answer, end token included if it was reached. margins: the target's top-2 logit gap at each token
    (empty when decoded with a draft). truncated: max_new_tokens came before an end token."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    truncated: bool


@torch.no_grad()
def decode_alone(target: Target, prompt_embeds: Tensor, max_new_tokens: int) -> Decoded:
    """The target's own greedy answer; prompt_embeds: [1, P0, H]."""
    state = target.start(prompt_embeds, ())
    logits = state.logits
    tokens: list[int] = []
    margins: list[float] = []
    while len(tokens) < max_new_tokens:
        best = logits[0, : target.token_limit].float().topk(2).values
        token = argmax_tokens(logits, target.token_limit)
        tokens.append(int(token))
        margins.append(float(best[0] - best[1]))
        if tokens[-1] in target.eos_ids:
            break
        logits = target.extend(state, token[None])[0][:, -1]
    return Decoded(tuple(tokens), tuple(margins), tokens[-1] not in target.eos_ids)


@torch.no_grad()
def decode_with_draft(
    target: Target, draft: DraftModel, prompt_embeds: Tensor, max_new_tokens: int, slots: int
) -> tuple[Decoded, Counters]:
    """The same answer, `slots` tokens proposed a round; prompt_embeds: [1, P0, H]."""
    state = target.start(prompt_embeds, draft.shape.target_layer_ids)
    cache, counters = DraftCache(), Counters.zero(slots)
    committed = [int(argmax_tokens(state.logits, target.token_limit))]
    new_taps = state.taps
    while committed[-1] not in target.eos_ids and len(committed) < max_new_tokens:
        add_context(draft, cache, new_taps)
        anchor = torch.tensor([committed[-1]], device=target.device)
        proposed = propose(draft, target, cache, anchor, slots)
        start = state.length  # position of the newest committed token, not in the target's cache yet
        logits, taps = target.extend(state, torch.cat([anchor[None], proposed], dim=1))
        said = argmax_tokens(logits, target.token_limit)
        agrees = proposed[0] == said[0, :-1]
        accepted = int(agrees.int().cumprod(0).sum())
        counters += Counters.of_round(accepted, slots)
        committed += until_stop(said[0, : accepted + 1].tolist(), target.eos_ids)
        new_taps = taps[:, : accepted + 1]
        target.crop(state, start + accepted + 1)
    committed = committed[:max_new_tokens]
    return Decoded(tuple(committed), (), committed[-1] not in target.eos_ids), counters


def until_stop(tokens: list[int], eos_ids: tuple[int, ...]) -> list[int]:
    """The tokens up to and including the first end token."""
    for place, token in enumerate(tokens):
        if token in eos_ids:
            return tokens[: place + 1]
    return tokens
