"""The only factory of tiny targets, batches and cuts for tests: random weights from a fixed seed, seconds of tones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dflash_train.config import SalmConfig
from dflash_train.data.compose import Composition, compose
from dflash_train.data.cuts import clip_cut, write_cuts
from dflash_train.data.tokenizer import train_tokenizer
from dflash_train.recipes.salm import salm_recipe
from dflash_train.records import Batch
from dflash_train.target.base import TargetIds
from dflash_train.target.causal_lm import CausalLMTarget
from dflash_train.target.speech_lm import SpeechLM

VOCAB, HIDDEN, LAYERS = 97, 32, 4
EOS, PAD, MASK = 1, 2, 96
TEXT_IDS = TargetIds(pad_id=PAD, eos_ids=(EOS,), token_limit=95, mask_token_id=MASK)
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": 0,
    "tie_word_embeddings": False,
}
FAMILIES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def tiny_llm(family: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    """A random causal LM whose logits differ clearly (weights five times the usual spread)."""
    config_class, model_class = FAMILIES[family]
    config = config_class(**{**SHAPE, "initializer_range": 0.1, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model_class(config).to(dtype).eval()


def tiny_target(
    family: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> CausalLMTarget:
    """A frozen text target: 4 layers, H 32, V 97, mask id 96; ids from 95 on are never produced."""
    return CausalLMTarget(tiny_llm(family, seed, dtype, **overrides), TEXT_IDS)


def text_batch(lengths: tuple[int, ...] = (24, 17), prompt: int = 5, seed: int = 0, width: int = 0) -> Batch:
    """Right-padded text rows of the given lengths, the first `prompt` tokens of each unsupervised."""
    generator = torch.Generator().manual_seed(seed)
    size = max(width, *lengths)
    ids = torch.full((len(lengths), size), PAD, dtype=torch.int64)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(3, 95, (length,), generator=generator)
    place = torch.arange(size)[None]
    token_mask = place < torch.tensor(lengths)[:, None]
    return Batch(
        input_ids=ids,
        loss_mask=token_mask & (place >= prompt),
        token_mask=token_mask,
        audio_mask=torch.zeros_like(token_mask),
        rows=torch.arange(len(lengths)),
        ids=tuple(f"text-{i}" for i in range(len(lengths))),
    )


def one_text_row(ids: Tensor, prompt: int) -> Batch:
    """A batch of one unpadded row with the given ids int64 [S]."""
    mask = torch.ones(1, len(ids), dtype=torch.bool)
    return Batch(
        input_ids=ids[None],
        loss_mask=torch.arange(len(ids))[None] >= prompt,
        token_mask=mask,
        audio_mask=torch.zeros_like(mask),
        rows=torch.zeros(1, dtype=torch.int64),
        ids=("text",),
    )


WORDS = ("one", "two", "three", "four", "please hold", "good bye", "the number", "is not valid")


def tone(clip: int, num_samples: int) -> np.ndarray:
    """float32 samples of a quiet chord whose pitch tells the clips apart."""
    time = np.arange(num_samples) / 16000
    pitches = [200.0 * (clip + 1), 310.0 * (clip + 2)]
    return (0.2 * sum(np.sin(2 * np.pi * pitch * time) for pitch in pitches)).astype(np.float32)


def tiny_clips(folder: Path, split: str = "train") -> Path:
    """A manifest of eight tones of 0.3 to 0.7 s, each with words of its own, recordings beside it; its path."""
    (folder / "clips").mkdir(parents=True, exist_ok=True)
    cuts = []
    for number, words in enumerate(WORDS):
        samples = tone(number, 4800 + 900 * number)
        soundfile.write(folder / "clips" / f"{number}.flac", samples, 16000, subtype="PCM_16")
        cuts.append(clip_cut(f"clip-{number}", f"clips/{number}.flac", len(samples), words, split))
    write_cuts(folder / "clips.jsonl.gz", cuts)
    return folder / "clips.jsonl.gz"


def tiny_utterances(folder: Path, count: int = 12, suffix: str = ".jsonl.gz") -> Path:
    """A manifest of utterances composed from tiny_clips; its path."""
    words = tiny_tokenizer()
    plan = Composition(count=count, split="train", tokens=(4, 16))
    out = folder / f"utterances{suffix}"
    compose(tiny_clips(folder), out, plan, lambda text: len(words.encode(text, add_special_tokens=False)))
    return out


def tiny_tokenizer() -> Any:
    """45 ids at most: letters, a few merges, the placeholders at the end."""
    return train_tokenizer(WORDS, 64)


def tiny_salm_config(folder: Path) -> SalmConfig:
    """A speech LLM of some 30,000 parameters, its tokenizer saved in `folder`."""
    tiny_tokenizer().save_pretrained(folder / "tokenizer")
    return SalmConfig(
        tokenizer=str(folder / "tokenizer"),
        num_mel_bins=16,
        encoder_hidden_size=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_intermediate_size=32,
        encoder_subsampling_channels=4,
        llm_hidden_size=HIDDEN,
        llm_layers=LAYERS,
        llm_attention_heads=4,
        llm_key_value_heads=2,
        llm_intermediate_size=48,
        dropout=0.0,
        spec_augment=False,
    )


def tiny_speech_lm(folder: Path, seed: int = 0) -> SpeechLM:
    """A random SpeechLM in evaluation mode."""
    return salm_recipe(tiny_salm_config(folder), seed).module.speech_lm.eval()
