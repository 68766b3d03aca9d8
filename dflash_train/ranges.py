"""Which values of the config are allowed, key by key. Imports neither torch nor transformers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from dflash_train.config import TrainConfig
from dflash_train.errors import ConfigError

POSITIVE = (lambda value: value >= 1, "at least 1")
POSITIVE_OR_NULL = (lambda value: value is None or value >= 1, "at least 1, or null")
NOT_NEGATIVE = (lambda value: math.isfinite(value) and value >= 0, "0 or more")
ABOVE_ZERO = (lambda value: math.isfinite(value) and value > 0, "above 0")

# Dotted key -> (predicate, what is allowed).
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "data.batch_size": POSITIVE,
    "data.accumulation": POSITIVE,
    "data.num_workers": NOT_NEGATIVE,
    "optimizer.lr": ABOVE_ZERO,
    "optimizer.betas": (lambda b: len(b) == 2 and all(0 <= x < 1 for x in b), "two numbers in [0, 1)"),
    "optimizer.eps": ABOVE_ZERO,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.clip": NOT_NEGATIVE,
    "salm.ctc_weight": NOT_NEGATIVE,
    "salm.num_mel_bins": POSITIVE,
    "salm.encoder_hidden_size": POSITIVE,
    "salm.encoder_layers": POSITIVE,
    "salm.encoder_attention_heads": POSITIVE,
    "salm.encoder_intermediate_size": POSITIVE,
    "salm.encoder_subsampling_channels": POSITIVE,
    "salm.llm_hidden_size": POSITIVE,
    "salm.llm_layers": POSITIVE,
    "salm.llm_attention_heads": POSITIVE,
    "salm.llm_key_value_heads": POSITIVE,
    "salm.llm_intermediate_size": POSITIVE,
    "salm.dropout": (lambda value: 0 <= value < 1, "within [0, 1)"),
    "lr_scheduler.warmup_steps": NOT_NEGATIVE,
    "lr_scheduler.horizon": POSITIVE_OR_NULL,
    "lr_scheduler.min_ratio": (lambda value: 0 <= value <= 1, "within [0, 1]"),
    "checkpoint.interval": NOT_NEGATIVE,
    "validation.interval": NOT_NEGATIVE,
    "validation.max_batches": POSITIVE,
    "draft.block_size": (lambda value: value >= 2, "at least 2 (an anchor and a slot)"),
    "draft.num_hidden_layers": POSITIVE,
    "draft.intermediate_size": POSITIVE_OR_NULL,
    "draft.num_attention_heads": POSITIVE_OR_NULL,
    "draft.num_key_value_heads": POSITIVE_OR_NULL,
    "draft.head_dim": POSITIVE_OR_NULL,
    "draft.conv_kernel_size": POSITIVE,
    "draft.conv_group_size": POSITIVE,
    "draft.selector_rank": POSITIVE,
    "draft.selector_top_k": POSITIVE,
    "objective.num_anchors": POSITIVE,
    "objective.loss_decay_gamma": (lambda value: value is None or value > 0, "above 0, or null"),
    "objective.selector_loss_weight": NOT_NEGATIVE,
}


# (key, the key that must divide it)
MULTIPLES = (
    ("data.batch_size", "data.accumulation"),
    ("salm.encoder_hidden_size", "salm.encoder_attention_heads"),
    ("salm.llm_hidden_size", "salm.llm_attention_heads"),
    ("salm.llm_attention_heads", "salm.llm_key_value_heads"),
)


def range_errors(config: TrainConfig) -> Iterator[ConfigError]:
    """Every value out of its range; where there is none, every pair of values that do not go together."""
    out_of_range = [
        ConfigError(f"{key}: {value!r} was given; allowed: {allowed}", key)
        for key, (good, allowed) in RANGES.items()
        if not good(value := operator.attrgetter(key)(config))
    ]
    yield from out_of_range
    if out_of_range:
        return  # what follows divides by them
    for whole, part in MULTIPLES:
        if operator.attrgetter(whole)(config) % operator.attrgetter(part)(config):
            value, divisor = operator.attrgetter(whole)(config), operator.attrgetter(part)(config)
            yield ConfigError(f"{whole}: {value} is not a multiple of {part}, {divisor}", whole)
    if config.validation.interval and not config.validation.sets:
        yield ConfigError(
            f"validation.interval: {config.validation.interval}, and validation.sets is empty; name a set or write 0",
            "validation.interval",
        )
