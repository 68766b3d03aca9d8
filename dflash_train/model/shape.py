"""What a draft looks like: the numbers from which its tensors, its config.json and its decoding follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_train.config import Variant


@dataclass(frozen=True)
class DraftShape:
    """Names are those of the draft's config.json (specification 5.1 and 5.2)."""

    variant: Variant
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int
    rms_norm_eps: float
    rope_parameters: Mapping[str, Any]
    max_position_embeddings: int
    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 256
    selector_top_k: int = 16
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float = 0.0
    initializer_range: float = 0.02

    @property
    def predicted_slots(self) -> int:
        """P = block_size - 1: slot 0 is the anchor."""
        return self.block_size - 1
