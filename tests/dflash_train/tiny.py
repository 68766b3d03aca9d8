"""The only factory of tiny targets, batches and cuts for tests: random weights from a fixed seed, seconds of tones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dflash_train.records import Batch
from dflash_train.target.base import TargetIds
from dflash_train.target.causal_lm import CausalLMTarget

VOCAB, HIDDEN, LAYERS = 97, 32, 4
EOS, PAD, MASK = 1, 2, 96
TEXT_IDS = TargetIds(pad_id=PAD, eos_ids=(EOS,), token_limit=95, mask_token_id=MASK)
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
    "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 0, "tie_word_embeddings": False}
FAMILIES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def tiny_llm(family: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    """A random causal LM whose logits differ clearly (weights five times the usual spread)."""
    config_class, model_class = FAMILIES[family]
    config = config_class(**{**SHAPE, "initializer_range": 0.1, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model_class(config).to(dtype).eval()


def tiny_target(
    family: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> CausalLMTarget:
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
        input_ids=ids, loss_mask=token_mask & (place >= prompt), token_mask=token_mask,
        audio_mask=torch.zeros_like(token_mask), rows=torch.arange(len(lengths)),
        ids=tuple(f"text-{i}" for i in range(len(lengths))))


def one_text_row(ids: Tensor, prompt: int) -> Batch:
    """A batch of one unpadded row with the given ids int64 [S]."""
    mask = torch.ones(1, len(ids), dtype=torch.bool)
    return Batch(
        input_ids=ids[None], loss_mask=torch.arange(len(ids))[None] >= prompt, token_mask=mask,
        audio_mask=torch.zeros_like(mask), rows=torch.zeros(1, dtype=torch.int64), ids=("text",))
