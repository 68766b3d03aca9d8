"""A speech LLM (SALM): log-mel features -> encoder -> projector -> any Hugging Face causal LM.

    folder/
      speech_lm.json          version, prompt template, geometry of the features, special ids
      encoder/                a Hugging Face Parakeet encoder (FastConformer, one frame out of 80 ms)
      projector.safetensors   norm, two linear layers
      llm/                    a Hugging Face causal LM with its tokenizer

Everything is loaded strictly: a folder is used whole or not at all.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import ParakeetEncoder

from dflash_train.data.prompt import Prompt, split_template
from dflash_train.errors import TargetError
from dflash_train.target.base import TargetIds
from dflash_train.target.causal_lm import CausalLMTarget
from dflash_train.target.features import Geometry, LogMel
from dflash_train.target.strict import (
    load_causal_lm,
    load_pretrained,
    load_tokenizer,
    no_progress_bars,
    read_json,
)

VERSION = 1
DESCRIPTION = "speech_lm.json"


@dataclass(frozen=True)
class SpeechFacts:
    """What speech_lm.json holds. prompt: a template with one audio_tag; the rest as in TargetIds and Geometry."""

    prompt: str
    audio_tag: str
    num_mel_bins: int
    pad_id: int
    eos_ids: tuple[int, ...]
    token_limit: int
    mask_token_id: int

    @property
    def ids(self) -> TargetIds:
        return TargetIds(self.pad_id, self.eos_ids, self.token_limit, self.mask_token_id)

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.num_mel_bins)


class Projector(nn.Module):
    """Encoder frames [B, F, E] -> embeddings of the LLM [B, F, H]."""

    def __init__(self, encoder_size: int, hidden_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(encoder_size)
        self.up = nn.Linear(encoder_size, hidden_size)
        self.down = nn.Linear(hidden_size, hidden_size)

    def forward(self, frames: Tensor) -> Tensor:
        hidden: Tensor = self.down(nn.functional.gelu(self.up(self.norm(frames))))
        return hidden


class SpeechFront(nn.Module):
    """audio float32 [B, A], samples int64 [B] -> embeddings [B, F, H] and their mask bool [B, F]."""

    def __init__(self, geometry: Geometry, encoder: Any, projector: Projector) -> None:
        super().__init__()
        self.features = LogMel(geometry)
        self.encoder = encoder
        self.projector = projector

    def train(self, mode: bool = True) -> SpeechFront:
        """The encoder's batch norms stay affine maps of their stored statistics (fresh: mean 0, variance 1).

        Statistics of the batch would make a row depend on its neighbours, and a run on the number of its ranks.
        """
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self

    def encode(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Features float32 [B, F', mel] and their mask -> encoder frames [B, F, E] and theirs."""
        dtype = self.projector.up.weight.dtype
        output = self.encoder(input_features=features.to(dtype), attention_mask=mask)
        return output.last_hidden_state, output.attention_mask.bool()

    def forward(self, audio: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        frames, mask = self.encode(*self.features(audio, samples))
        return self.projector(frames), mask


class SpeechLM(nn.Module):
    """The four parts and the facts that bind them. `target` freezes them; a recipe trains them."""

    def __init__(self, facts: SpeechFacts, front: SpeechFront, llm: Any, tokenizer: Any) -> None:
        super().__init__()
        self.facts = facts
        self.front = front
        self.llm = llm
        self.tokenizer = tokenizer

    @classmethod
    def from_folder(cls, folder: Path, dtype: torch.dtype = torch.float32) -> SpeechLM:
        """Raises TargetError if anything is missing, surplus, mis-shaped or contradicts the rest."""
        facts = read_facts(folder)
        encoder = load_pretrained(ParakeetEncoder, folder / "encoder", dtype)
        llm = load_causal_lm(folder / "llm", dtype)
        tokenizer = load_tokenizer(folder / "llm")
        if tokenizer is None:
            raise TargetError(f"{folder / 'llm'} has no tokenizer")
        if encoder.config.num_mel_bins != facts.num_mel_bins:
            seen = encoder.config.num_mel_bins
            raise TargetError(f"{folder}: the encoder reads {seen} mel bins, {DESCRIPTION} says {facts.num_mel_bins}")
        projector = Projector(encoder.config.hidden_size, llm.config.hidden_size).to(dtype)
        load_strictly(projector, folder / "projector.safetensors", dtype)
        return cls(facts, SpeechFront(facts.geometry, encoder, projector), llm, tokenizer).eval()

    def save(self, folder: Path, dtype: torch.dtype = torch.bfloat16, state: dict[str, Tensor] | None = None) -> None:
        """Writes the folder of the module's docstring; weights as safetensors in `dtype`.

        state: the whole weights, where the module's own are sharded.
        """
        whole = {name: cast(value, dtype) for name, value in (state or self.state_dict()).items()}
        part = lambda prefix: {k.removeprefix(prefix): v for k, v in whole.items() if k.startswith(prefix)}  # noqa: E731
        folder.mkdir(parents=True, exist_ok=True)
        with no_progress_bars():
            for model, name, prefix in ((self.front.encoder, "encoder", "front.encoder."), (self.llm, "llm", "llm.")):
                trained_in, model.config.dtype = model.config.dtype, dtype
                model.save_pretrained(folder / name, state_dict=part(prefix))
                model.config.dtype = trained_in
        save_file(part("front.projector."), folder / "projector.safetensors", {"format": "pt"})
        self.tokenizer.save_pretrained(folder / "llm")
        text = json.dumps({"version": VERSION, **asdict(self.facts)}, indent=2)
        (folder / DESCRIPTION).write_text(text + "\n", "utf-8")

    def prompt(self) -> Prompt:
        """How utterances become rows of this model."""
        return prompt_of(self.facts, self.tokenizer)

    def target(self) -> CausalLMTarget:
        """The frozen target of these weights."""
        return CausalLMTarget(self.llm, self.facts.ids, front=self.front)


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating tensors in `dtype`, counters as they are; contiguous."""
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor).detach().contiguous()


def read_facts(folder: Path) -> SpeechFacts:
    """The facts of a SpeechLM folder. Raises TargetError on another version, a missing or an unknown key."""
    raw = read_json(folder / DESCRIPTION)
    version = raw.pop("version", None)
    if version != VERSION:
        raise TargetError(f"{folder / DESCRIPTION}: version {version}, this program reads {VERSION}")
    try:
        return SpeechFacts(**{**raw, "eos_ids": tuple(raw["eos_ids"])})
    except (TypeError, KeyError) as error:
        raise TargetError(f"{folder / DESCRIPTION}: its keys are not those of version {VERSION}: {error}") from None


def prompt_of(facts: SpeechFacts, tokenizer: Any) -> Prompt:
    """The prompt of a speech LLM. Raises ConfigError if its template is wrong."""
    prefix, suffix = split_template(facts.prompt, facts.audio_tag, tokenizer)
    return Prompt(
        tokenizer=tokenizer,
        prefix=prefix,
        suffix=suffix,
        pad_id=facts.pad_id,
        eos_id=facts.eos_ids[0],
        num_frames=facts.geometry.num_audio_tokens,
    )


def load_strictly(module: nn.Module, path: Path, dtype: torch.dtype) -> None:
    """Raises TargetError unless the file holds exactly the module's tensors."""
    try:
        state = {key: value.to(dtype) for key, value in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise TargetError(f"{path} cannot be read: {error}") from None
    wanted = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    seen = {key: tuple(value.shape) for key, value in state.items()}
    for key in sorted(wanted.keys() | seen.keys()):
        if wanted.get(key) != seen.get(key):
            raise TargetError(f"{path}: {key}: shape {seen.get(key, 'missing')}, needed {wanted.get(key, 'none')}")
    module.load_state_dict(state)
