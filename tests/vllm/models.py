"""A target that says three tokens only, and drafts that are accepted partially, without any training.

Feature 0 of every embedding is one and the same number, no layer may write to it (row 0 of o_proj and down_proj is
zero, in target and draft alike), and the head reads it for three tokens: so both say one of
these three, at random otherwise.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_train.config import Variant
from dflash_train.export.folder import write_export
from dflash_train.model.draft import DraftModel
from dflash_train.model.init import initialise
from dflash_train.model.shape import DraftShape

VOCAB, HIDDEN, LAYERS, MASK = 512, 128, 6, 511
FEW, EMPHASIS = [97, 98, 99], 500.0
TAPS, BLOCK = (1, 3), 8


@torch.no_grad()
def protect(model: torch.nn.Module) -> None:
    """Nothing writes to feature 0 of the residual stream."""
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter[0] = 0.0


@torch.no_grad()
def few_tokens_target(folder: Path) -> Qwen3ForCausalLM:
    """Qwen3, 6 layers, fp32, saved to `folder`."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=256, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=False,
        initializer_range=0.2, bos_token_id=0, eos_token_id=1, pad_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float().eval()
    protect(model)
    model.model.embed_tokens.weight[:, 0] = 1.0
    model.lm_head.weight[:, 0] = 0.0
    model.lm_head.weight[FEW, 0] = EMPHASIS
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def random_draft(folder: Path, variant: Variant) -> None:
    """A random draft, convolution and selector included, exported to `folder` as bf16."""
    shape = DraftShape(
        variant=variant, hidden_size=HIDDEN, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, vocab_size=VOCAB, num_target_layers=LAYERS, target_layer_ids=TAPS,
        block_size=BLOCK, mask_token_id=MASK, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, max_position_embeddings=512,
        **({"selector_rank": 32, "selector_top_k": 8} if variant is Variant.dflash2 else {}),
    )  # fmt: skip
    draft = initialise(DraftModel(shape), seed=1)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in draft.named_parameters():
        if not name.endswith("norm.weight"):
            # More, and selector or convolutions would drown the emphasis on the three tokens.
            spread = 0.04 if "selector" in name or "conv" in name else 0.2
            parameter += spread * torch.randn(parameter.shape, generator=generator)
    protect(draft)
    write_export(folder, shape, draft.state_dict(), {"step": 0})
