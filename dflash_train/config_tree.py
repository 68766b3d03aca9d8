"""From a plain tree (YAML, JSON) to a TrainConfig, with every mistake named at once.

OmegaConf does the conversion, but alone it stops at the first mistake and turns "7" into 7 in silence, so the tree is
walked against the dataclasses first. Imports neither torch nor transformers.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dflash_train.config import TrainConfig
from dflash_train.errors import ConfigError

Tree = Mapping[str, Any]
SPELLINGS = {str: "text", int: "an integer", float: "a number", bool: "true or false", type(None): "null"}


def load_yaml(path: Path) -> dict[str, Any]:
    """The tree of a resolved.yaml. Raises ConfigError where there is none."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config; give the resolved.yaml of a run directory") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a config: {error}") from None
    return read_tree(text, str(path))


def read_tree(text: str, name: str) -> dict[str, Any]:
    """The tree of a YAML or JSON text. Raises ConfigError.

    OmegaConf's loader, since plain YAML 1.1 takes 1e-5 (which JSON writers write) for text and lets keys repeat.
    """
    try:
        tree = OmegaConf.to_container(OmegaConf.create(text))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: a config is a mapping of keys, this is a {type(tree).__name__}")
    return {str(key): value for key, value in tree.items()}


def parse(tree: Tree) -> TrainConfig:
    """The config that `tree` spells. Raises the first of `mistakes(tree)`."""
    for mistake in mistakes(tree):
        raise mistake
    merged = OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.create(dict(tree)))
    config = OmegaConf.to_object(merged)
    assert isinstance(config, TrainConfig)
    return config


def to_tree(config: TrainConfig) -> dict[str, Any]:
    """The inverse of `parse`: plain values alone."""
    tree = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def mistakes(tree: Tree) -> list[ConfigError]:
    """Unknown keys and values of the wrong type, all of them, each with its dotted key."""
    return list(_section(TrainConfig, tree, ""))


def leaf_keys(kind: type = TrainConfig, prefix: str = "") -> Iterator[str]:
    """Every leaf key of the config, dotted."""
    for field, hint in _hints(kind).items():
        if is_dataclass(hint):
            yield from leaf_keys(typing.cast(type, hint), f"{prefix}{field}.")
        else:
            yield prefix + field


def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _section(kind: type, tree: Tree, prefix: str) -> Iterator[ConfigError]:
    hints = _hints(kind)
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if name not in hints:
            nearest = _nearest(key, prefix, hints)
            hint = f"did you mean {nearest}?" if nearest else f"allowed here: {', '.join(hints)}"
            yield ConfigError(f"{key}: no code reads this key; {hint}", key, nearest)
        elif is_dataclass(hints[name]):
            if isinstance(value, Mapping):
                yield from _section(typing.cast(type, hints[name]), value, f"{key}.")
            else:
                yield ConfigError(f"{key}: a section of keys is wanted, {value!r} was given", key)
        elif not _fits(value, hints[name]):
            yield ConfigError(
                f"{key}: {_spell(hints[name])} is wanted, {value!r} ({type(value).__name__}) was given", key
            )


def _nearest(key: str, prefix: str, siblings: Mapping[str, Any]) -> str | None:
    near = difflib.get_close_matches(key.removeprefix(prefix), list(siblings), n=1, cutoff=0.6)
    if near:
        return prefix + near[0]
    leaf = key.rpartition(".")[2]  # the right key in the wrong section is the commonest slip
    elsewhere = [known for known in leaf_keys() if known.rpartition(".")[2] == leaf]
    close = elsewhere or difflib.get_close_matches(key, list(leaf_keys()), n=1, cutoff=0.75)
    return close[0] if close else None


def _fits(value: Any, hint: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if hint is type(None):
        return value is None
    if origin is list:
        return isinstance(value, list) and all(_fits(item, args[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, args[0]) and _fits(v, args[1]) for k, v in value.items())
    if isinstance(hint, type) and issubclass(hint, Enum):
        return isinstance(value, str) and value in [member.value for member in hint]
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _spell(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_spell(arg) for arg in args)
    if origin is list:
        return f"a list of {_spell(args[0])}"
    if origin is dict:
        return f"a mapping of {_spell(args[0])} to {_spell(args[1])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(member.value for member in hint)
    return SPELLINGS[hint]
