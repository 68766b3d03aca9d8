"""The draft's config.json, field by field (specification 5.1, 5.2), and back.

Every field is named here; nothing is copied from the target's config as a whole, since a field that leaks
(partial_rotary_factor, quantization_config) makes trainer and server disagree in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_train.config import Variant
from dflash_train.errors import ExportError
from dflash_train.model.shape import DraftShape

ARCHITECTURES = {Variant.dflash: "DFlashDraftModel", Variant.dflash2: "DFlash2DraftModel"}  # the names servers register


def to_config_json(shape: DraftShape) -> dict[str, Any]:
    """What vLLM, SGLang and z-lab's reader need; block_size and causality are written where each of them looks."""
    rope = dict(shape.rope_parameters)
    layers = shape.num_hidden_layers
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[shape.variant]],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": shape.initializer_range,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "tie_word_embeddings": False,
        "use_cache": True,
        "is_causal": False,
        "layer_types": ["full_attention"] * layers,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": layers,
        "num_target_layers": shape.num_target_layers,
        "block_size": shape.block_size,
        "dflash_config": {
            "mask_token_id": shape.mask_token_id,
            "target_layer_ids": list(shape.target_layer_ids),
            "block_size": shape.block_size,
            "sample_from_anchor": False,
            "causal": False,
            "input_embedding_scale": shape.input_embedding_scale,
            "output_multiplier": shape.output_multiplier,
            "final_logit_softcapping": shape.final_logit_softcapping,
        },
    }
    if rope.get("rope_type", "default") != "default":
        config["rope_scaling"] = rope  # older readers
    if shape.variant is Variant.dflash2:
        config["dflash_config"] |= {
            "conv_kernel_size": shape.conv_kernel_size,
            "conv_group_size": shape.conv_group_size,
            "selector_rank": shape.selector_rank,
            "selector_top_k": shape.selector_top_k,
        }
    return config


def from_config_json(config: Mapping[str, Any]) -> DraftShape:
    """The shape that a config.json describes. Raises ExportError for what this project cannot run rightly."""
    try:
        inner = config["dflash_config"]
        names = {name: variant for variant, name in ARCHITECTURES.items()}
        variant = names.get(config["architectures"][0])
        if variant is None:
            raise ExportError(f"architectures: {config['architectures']}: servers register {', '.join(names)}")
        if inner.get("sample_from_anchor"):
            raise ExportError("dflash_config.sample_from_anchor: true is another block layout: slot 0 predicts too")
        if inner.get("block_size", config["block_size"]) != config["block_size"]:
            raise ExportError(f"block_size: {config['block_size']} at the top, {inner['block_size']} in dflash_config")
        extra = {}
        if variant is Variant.dflash2:
            keys = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
            extra = {key: inner[key] for key in keys}
        return DraftShape(
            variant=variant,
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=config["num_attention_heads"],
            num_key_value_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            vocab_size=config["vocab_size"],
            num_target_layers=config["num_target_layers"],
            target_layer_ids=tuple(inner["target_layer_ids"]),
            block_size=config["block_size"],
            mask_token_id=inner["mask_token_id"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_parameters=dict(config["rope_parameters"]),
            max_position_embeddings=config["max_position_embeddings"],
            input_embedding_scale=inner.get("input_embedding_scale", 1.0),
            output_multiplier=inner.get("output_multiplier", 1.0),
            final_logit_softcapping=inner.get("final_logit_softcapping", 0.0),
            initializer_range=config["initializer_range"],
            **extra,
        )
    except KeyError as error:
        raise ExportError(f"config.json has no {error.args[0]}, which a server needs") from None
