"""A frozen Hugging Face causal LM as a target, with or without an audio front end before it.

It always works from input embeddings: text ids are embedded, audio frames are put where `audio_mask` says, and the
decoder runs on the result. Rows are right-padded and attention is causal, so padding is never seen by a real position
and no attention mask is needed.

Two facts of a model family are measured at load, on four tokens, instead of being listed by name: the factor between
its embedding table and what its first layer sees, and whether `logits` (head, scale, soft cap) is what the model itself
computes. A family with another logit transform is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dflash_train.errors import DataError, TargetError
from dflash_train.records import Batch, TargetReading
from dflash_train.target.base import DecodeState, TargetIds, answer_start
from dflash_train.target.cache import KVCache, cache_argument
from dflash_train.target.strict import load_causal_lm, load_tokenizer
from dflash_train.target.taps import check_tap_ids, read_taps

ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}


class CausalLMTarget(nn.Module):
    """See base.Target. Frozen, and in evaluation mode whatever `train()` is told."""

    def __init__(self, llm: Any, ids: TargetIds, front: nn.Module | None = None) -> None:
        """llm: a Hugging Face causal LM. front: (audio [B, A], samples [B]) -> (frames [B, F, H], mask [B, F])."""
        super().__init__()
        self.llm = llm
        self.front = front
        self.decoder = llm.get_decoder()
        self.layers = decoder_layers(llm)
        self.llm_config = llm.config
        self.hidden_size = int(llm.config.hidden_size)
        self.num_layers = len(self.layers)
        scale, divisor = getattr(llm.config, "logit_scale", None), getattr(llm.config, "logits_scaling", None)
        self.output_multiplier = float(scale or 1.0) / float(divisor or 1.0)  # Cohere; Granite
        self.vocab_size = int(llm.get_output_embeddings().weight.shape[0])
        self.pad_id, self.eos_ids, self.token_limit = ids.pad_id, ids.eos_ids, ids.token_limit
        self._mask_token_id = ids.mask_token_id
        self._cache_argument = cache_argument(self.decoder)
        self.requires_grad_(False)
        self.train(False)
        self.embedding_scale = embedding_scale(self)
        check_logits(self)

    def train(self, mode: bool = True) -> CausalLMTarget:
        """A target never trains: dropout in it would change the labels and the taps."""
        super().train(False)
        return self

    @property
    def device(self) -> torch.device:
        return self.head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head_weight.dtype

    @property
    def head_weight(self) -> Tensor:
        """[V, H]."""
        weight: Tensor = self.llm.get_output_embeddings().weight
        return weight

    @property
    def mask_token_id(self) -> int:
        """Raises TargetError if the target has no id to spare."""
        if self._mask_token_id is None:
            raise TargetError("the target names no mask token and has no spare row: set draft.mask_token_id")
        return self._mask_token_id

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [...] -> [..., H], as the first layer sees it."""
        embeddings: Tensor = self.llm.get_input_embeddings()(ids)
        return embeddings * self.embedding_scale if self.embedding_scale != 1.0 else embeddings

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] after the final norm -> [..., V]."""
        logits: Tensor = self.llm.get_output_embeddings()(hidden)
        if self.output_multiplier != 1.0:
            logits = logits * self.output_multiplier
        if (cap := getattr(self.llm_config, "final_logit_softcapping", None)) is not None:  # Gemma 2
            logits = torch.tanh(logits / cap) * cap
        return logits

    def inputs_embeds(self, batch: Batch) -> Tensor:
        """[B, S, H]: what the decoder takes (not yet scaled, if the model scales inside)."""
        embeddings: Tensor = self.llm.get_input_embeddings()(batch.input_ids)
        if batch.audio is None or batch.audio_samples is None:
            return embeddings
        if self.front is None:
            raise TargetError("the batch has audio, but the target is a text LLM")
        frames, frame_mask = self.front(batch.audio, batch.audio_samples)
        return place_frames(embeddings, batch.audio_mask, frames, frame_mask)

    @torch.no_grad()
    def read(self, batch: Batch, tap_ids: Sequence[int], want_hidden: bool) -> TargetReading:
        """One teacher-forced pass. The head is not run."""
        taps, hidden = self._decode(self.inputs_embeds(batch), check_tap_ids(tap_ids, self.num_layers), None)
        return TargetReading(taps=taps, hidden=hidden if want_hidden else None)

    @torch.no_grad()
    def prompt_embeds(self, batch: Batch, row: int) -> Tensor:
        """[1, P0, H]. Raises DataError if the row has no supervised token, so no place where an answer starts."""
        start = answer_start(batch, row)
        if start < 0:
            raise DataError(f"{batch.ids[row]}: no supervised token, so the prompt's end is not known")
        return self.inputs_embeds(one_row(batch, row))[:, :start]

    @torch.no_grad()
    def start(self, prompt_embeds: Tensor, tap_ids: Sequence[int]) -> DecodeState:
        """Reads the prompt [1, P0, H] into a new KV cache."""
        ids, cache = check_tap_ids(tap_ids, self.num_layers), KVCache()
        taps, hidden = self._decode(prompt_embeds, ids, cache)
        return DecodeState(cache=cache, tap_ids=ids, logits=self.logits(hidden[:, -1]), taps=taps)

    @torch.no_grad()
    def extend(self, state: DecodeState, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids int64 [1, n] -> logits [1, n, V], taps [1, n, T*H]."""
        taps, hidden = self._decode(self.llm.get_input_embeddings()(ids), state.tap_ids, state.cache)
        return self.logits(hidden), taps

    def crop(self, state: DecodeState, length: int) -> None:
        """Keeps the first `length` tokens of the cache."""
        state.cache.crop(length)

    def _decode(self, embeddings: Tensor, tap_ids: tuple[int, ...], cache: KVCache | None) -> tuple[Tensor, Tensor]:
        """[B, S, H] -> taps [B, S, T*H], hidden [B, S, H] after the final norm."""
        extra = {} if cache is None else {self._cache_argument: cache.store}
        with read_taps(self.layers, tap_ids, self.hidden_size) as reader:
            output = self.decoder(inputs_embeds=embeddings, use_cache=cache is not None, **extra)
        return reader.taps(output.last_hidden_state), output.last_hidden_state


def place_frames(embeddings: Tensor, audio_mask: Tensor, frames: Tensor, frame_mask: Tensor) -> Tensor:
    """Puts the frames of each row, in order, where the row's audio_mask is True.

    embeddings [B, S, H], audio_mask bool [B, S], frames [B, F, H], frame_mask bool [B, F] -> [B, S, H].
    Raises DataError if a row has another number of placeholders than of frames: a shift there is silent damage.
    """
    places, given = audio_mask.sum(1), frame_mask.sum(1)
    if not torch.equal(places, given):
        raise DataError(f"audio placeholders {places.tolist()} and encoder frames {given.tolist()} differ in number")
    return embeddings.masked_scatter(audio_mask[..., None], frames[frame_mask].to(embeddings.dtype))


def one_row(batch: Batch, row: int) -> Batch:
    """The row alone, without padding."""
    length = int(batch.token_mask[row].sum())
    pick = slice(row, row + 1)
    audio = samples = None
    if batch.audio is not None and batch.audio_samples is not None:
        samples = batch.audio_samples[pick]
        audio = batch.audio[pick, : int(samples)]
    return Batch(
        input_ids=batch.input_ids[pick, :length],
        loss_mask=batch.loss_mask[pick, :length],
        token_mask=batch.token_mask[pick, :length],
        audio_mask=batch.audio_mask[pick, :length],
        rows=batch.rows[pick],
        ids=(batch.ids[row],),
        audio=audio,
        audio_samples=samples,
    )


def decoder_layers(llm: Any) -> nn.ModuleList:
    """The list of decoder layers. Raises TargetError if there is none, or if one is not plain attention.

    A recurrent state (Mamba, linear attention) cannot be cropped back to an earlier token.
    """
    name = type(llm).__name__
    kinds = set(getattr(llm.config, "layer_types", None) or ()) - ATTENTION_LAYERS
    if kinds or getattr(llm, "_is_stateful", False):
        raise TargetError(f"{name} has layers of kind {sorted(kinds) or 'recurrent'}: only attention can be cropped")
    decoder = llm.get_decoder()
    for attribute in ("layers", "h", "blocks"):
        layers = getattr(decoder, attribute, None)
        if isinstance(layers, nn.ModuleList) and len(layers) == llm.config.num_hidden_layers:
            return layers
    raise TargetError(f"{name}: its decoder layers were not found (looked for layers, h and blocks)")


def probe_ids(target: CausalLMTarget) -> Tensor:
    return torch.arange(4, device=target.device)[None] % target.vocab_size


@torch.no_grad()
def embedding_scale(target: CausalLMTarget) -> float:
    """Factor between the embedding table and the first layer's input; 1.0 where they are not proportional (absolute
    position embeddings, which are not part of a token's embedding)."""
    table = target.llm.get_input_embeddings()(probe_ids(target))
    seen: list[Tensor] = []
    handle = target.layers[0].register_forward_pre_hook(
        lambda _module, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    try:
        target.decoder(inputs_embeds=table, use_cache=False)
    finally:
        handle.remove()
    first, table = seen[0].float(), table.float()
    scale = float((first * table).sum() / (table * table).sum().clamp_min(1e-30))
    return scale if abs(scale - 1) > 1e-3 and torch.allclose(first, table * scale, rtol=2e-2, atol=1e-6) else 1.0


@torch.no_grad()
def check_logits(target: CausalLMTarget) -> None:
    """Raises TargetError if `logits` is not what the model computes itself."""
    embeddings = target.llm.get_input_embeddings()(probe_ids(target))
    wanted = target.llm(inputs_embeds=embeddings, use_cache=False).logits.float()
    ours = target.logits(target.decoder(inputs_embeds=embeddings, use_cache=False).last_hidden_state).float()
    if not torch.isfinite(wanted).all():
        raise TargetError(f"{type(target.llm).__name__}: its logits are not finite: look at its weights")
    tolerance = 1e-4 if target.dtype == torch.float32 else 3e-2
    if not torch.allclose(ours, wanted, rtol=tolerance, atol=tolerance):
        raise TargetError(f"{type(target.llm).__name__} changes its logits in a way that is not known here")


def text_ids(llm: Any, tokenizer: Any | None) -> TargetIds:
    """Special ids of a text LLM from its generation config, its config and its tokenizer, in this order.

    Without a mask token the first row beyond the tokenizer's ids serves: the tokenizer cannot produce it.
    Raises TargetError if there is no end token.
    """
    sources = [llm.generation_config, llm.config, tokenizer]
    first = lambda name: next((v for s in sources if (v := getattr(s, name, None)) is not None), None)  # noqa: E731
    eos = first("eos_token_id")
    if eos is None:
        raise TargetError("the target names no eos_token_id: set it in its config.json")
    eos_ids = tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)
    pad = first("pad_token_id")
    rows = int(llm.get_output_embeddings().weight.shape[0])
    limit = min(rows, max(tokenizer.get_vocab().values()) + 1) if tokenizer is not None else rows
    mask = getattr(tokenizer, "mask_token_id", None)
    spare = limit if limit < rows else None
    return TargetIds(
        pad_id=int(pad) if pad is not None else eos_ids[0],
        eos_ids=eos_ids,
        token_limit=limit,
        mask_token_id=mask if mask is not None else spare,
    )


def load_causal_lm_target(folder: Path, dtype: torch.dtype) -> CausalLMTarget:
    """The target of a Hugging Face causal LM's folder, strictly loaded. Raises TargetError."""
    llm = load_causal_lm(folder, dtype)
    return CausalLMTarget(llm, text_ids(llm, load_tokenizer(folder)))
