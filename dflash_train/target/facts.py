"""What the target's JSON files say, without its weights: for `check`, which imports neither torch nor transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_train.errors import ConfigError


@dataclass(frozen=True)
class TargetFacts:
    """Sizes and special ids; token_limit: ids from there on are never part of an answer."""

    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    mask_token_id: int | None  # of a SpeechLM folder alone, like token_limit
    token_limit: int | None

    @classmethod
    def read(cls, folder: Path) -> TargetFacts:
        """Read a SpeechLM folder (speech_lm.json, llm/) or a Hugging Face folder. Raises ConfigError (target.path)."""
        speech = folder / "speech_lm.json"
        facts = _read_object(speech) if speech.is_file() else {}
        path = (folder / "llm" if speech.is_file() else folder) / "config.json"
        if not path.is_file():
            raise ConfigError(f"target.path: {folder} holds no {path.relative_to(folder)}", "target.path")
        config = _read_object(path)
        hidden = _integer(config, "hidden_size", path)
        heads = _integer(config, "num_attention_heads", path)
        return cls(
            num_hidden_layers=_integer(config, "num_hidden_layers", path),
            hidden_size=hidden,
            vocab_size=_integer(config, "vocab_size", path),
            intermediate_size=_integer(config, "intermediate_size", path),
            num_attention_heads=heads,
            num_key_value_heads=_integer(config, "num_key_value_heads", path, heads),
            head_dim=_integer(config, "head_dim", path, hidden // heads),
            mask_token_id=_integer(facts, "mask_token_id", speech) if facts else None,
            token_limit=_integer(facts, "token_limit", speech) if facts else None,
        )


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object of the target. Raises ConfigError (target.path)."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"target.path: {path} cannot be read as JSON: {error}", "target.path") from None
    if not isinstance(value, dict):
        raise ConfigError(f"target.path: {path} must hold one JSON object", "target.path")
    return value


def _integer(values: Mapping[str, Any], name: str, path: Path, instead: int | None = None) -> int:
    """A whole number above or equal 0; `instead` where it is absent or null. Raises ConfigError (target.path)."""
    value = values.get(name)
    value = instead if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        has = f"{name}: {value!r}" if value is not None else f"no {name}"
        raise ConfigError(f"target.path: {path} has {has}: not a causal LM that a draft can follow", "target.path")
    return value
