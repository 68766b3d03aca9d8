"""Checks a marked YAML document against a structured config, key by key, and converts it through OmegaConf.

OmegaConf alone would make "7" an int and 5 a text without a word, and names a bad key without its line; so tags, quotes
and names are checked here first, and each problem carries file, line, key, what was seen and what is allowed.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from launcher.errors import SpecError
from launcher.keys import QUOTED_TEXT, SiteKeys, SpecKeys
from launcher.yaml_marks import Document, Mark, nearest

_WALLTIME = re.compile(r"(?:(\d{1,3})-)?(\d{2}):([0-5]\d):([0-5]\d)")
_FILE_OF = {SpecKeys: "the experiment spec", SiteKeys: "the site profile"}
_NAME_OF_TYPE = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def key_types(schema: type) -> dict[str, Any]:
    """Dotted key -> type of every key of a structured config, groups included."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(schema).items():
        found[name] = hint
        if is_dataclass(hint) and isinstance(hint, type):
            found.update({f"{name}.{key}": inner for key, inner in key_types(hint).items()})
    return found


def takes_text(schema: type, key: str) -> bool:
    """True when a value for `key` is text by the schema, so that an override is taken as it stands."""
    hint = key_types(schema).get(key)
    return hint is str or (isinstance(hint, type) and issubclass(hint, Enum))


def problems(document: Document, schema: type) -> list[str]:
    """Every problem of the document, one line each: unknown keys, wrong types, unquoted wall times, bad values."""
    return list(_problems(document.values, schema, schema, "", document))


def convert(document: Document, schema: type) -> Any:
    """The document as an instance of `schema`, defaults filled in. SpecError where OmegaConf refuses."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        # Interpolation is never resolved: `${HOME}` in a setup line belongs to the shell.
        merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(document.values))
        tree: Any = OmegaConf.to_container(merged, resolve=False, enum_to_str=False)
    except OmegaConfBaseException as error:
        raise SpecError(f"{document.mark(str(error.full_key or '')) or ''}: {str(error).splitlines()[0]}") from None
    missing = [key for key, value in _leaves(tree) if value == "???"]
    if missing:
        source = next((mark.source for mark in document.marks.values()), "the file")
        raise SpecError("\n".join(f"{source}: `{key}` is required and missing" for key in missing))
    return _instance(schema, tree)


def walltime_seconds(text: str) -> int:
    """Seconds of "HH:MM:SS" or "D-HH:MM:SS". ValueError on anything else or zero."""
    match = _WALLTIME.fullmatch(text)
    if not match:
        raise ValueError(f'expected "HH:MM:SS" or "D-HH:MM:SS", got "{text}"')
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    if total == 0:
        raise ValueError("a wall time of zero")
    return total


def walltime_text(seconds: int) -> str:
    """The inverse of `walltime_seconds`."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _instance(schema: type, tree: dict[str, Any]) -> Any:
    hints = get_type_hints(schema)
    values = {}
    for item in fields(schema):
        hint, value = hints[item.name], tree[item.name]
        values[item.name] = _instance(hint, value) if is_dataclass(hint) and isinstance(hint, type) else value
    return schema(**values)


def _problems(values: dict[str, Any], group: type, schema: type, prefix: str, document: Document) -> Iterator[str]:
    hints = get_type_hints(group)
    for name, value in values.items():
        key = prefix + name
        mark = document.mark(key) or Mark("?", 0, "", False, "")
        if name not in hints:
            yield f"{mark}: unknown key `{key}`{_advice(key, name, hints, schema, prefix)}"
            continue
        hint = hints[name]
        if is_dataclass(hint) and isinstance(hint, type):
            if isinstance(value, dict):
                yield from _problems(value, hint, schema, key + ".", document)
            else:
                keys = ", ".join(get_type_hints(hint))
                yield f"{mark}: {key}: expected a group of keys ({keys}), got {_seen(value, mark)}"
            continue
        problem = _wrong(value, hint, key, mark, document)
        if problem:
            yield problem


def _advice(key: str, name: str, hints: dict[str, Any], schema: type, prefix: str) -> str:
    """Where an unknown key belongs, or the key that was probably meant."""
    own, other = key_types(schema), SiteKeys if schema is SpecKeys else SpecKeys
    elsewhere = key_types(other)
    if key in elsewhere:
        return f": it belongs in {_FILE_OF[other]}, not in {_FILE_OF[schema]}"
    for candidates, where in ((own, ""), (elsewhere, f", in {_FILE_OF[other]}")):
        same_leaf = [k for k in candidates if k.rsplit(".", 1)[-1] == name]
        if same_leaf:
            return f": did you mean `{same_leaf[0]}`{where}?"
    close = nearest(name, hints)
    if close:
        return f": did you mean `{prefix}{close}`?"
    return f" (the keys here are {', '.join(hints)})"


def _seen(value: Any, mark: Mark) -> str:
    if isinstance(value, dict):
        return "a group of keys"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    return f'the text "{mark.text}"' if isinstance(value, str) else f"`{mark.text or value}`"


def _wrong(value: Any, hint: Any, key: str, mark: Mark, document: Document) -> str | None:
    """What is wrong with a value of type `hint`, as one line; None when nothing is."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = next(a for a in args if a is not type(None))
        return None if value is None else _wrong(value, inner, key, mark, document)
    if origin is dict:
        if not isinstance(value, dict):
            return f"{mark}: {key}: expected a group of keys, got {_seen(value, mark)}"
        each = {f"{key}.{name}": item for name, item in value.items()}
    elif origin is list:
        if not isinstance(value, list):
            return f"{mark}: {key}: expected a list, got {_seen(value, mark)}"
        each = {f"{key}[{n}]": item for n, item in enumerate(value)}
    else:
        return _wrong_scalar(value, hint, key, mark)
    if args[-1] is Any:
        return next((p for k, v in each.items() if (p := _interpolated(v, k, document))), None)
    return next((p for k, v in each.items() if (p := _wrong(v, args[-1], k, document.mark(k) or mark, document))), None)


def _wrong_scalar(value: Any, hint: Any, key: str, mark: Mark) -> str | None:
    if isinstance(hint, type) and issubclass(hint, Enum):
        allowed = [str(member.value) for member in hint]
        if value in allowed:
            return None
        close = nearest(value, allowed) if isinstance(value, str) else None
        end = f": did you mean {close}?" if close else ""
        return f"{mark}: {key}: expected {' or '.join(allowed)}, got {_seen(value, mark)}{end}"
    if type(value) is not hint:
        advice = ": quote it" if hint is str and value is not None and not isinstance(value, dict | list) else ""
        if hint is not str and isinstance(value, str) and mark.quoted:
            advice = ": write it without quotes"
        return f"{mark}: {key}: expected {_NAME_OF_TYPE[hint]}, got {_seen(value, mark)}{advice}"
    if value == "???":  # OmegaConf's word for a value that is not given: it would take the default without a word
        return f"{mark}: {key}: `???` is no value: write one, or leave the key out"
    if key in QUOTED_TEXT and value:
        if not mark.quoted:
            return f'{mark}: {key}: a wall time not in quotes, and YAML reads some as numbers: quote it ("{mark.text}")'
        try:
            walltime_seconds(value)
        except ValueError as error:
            return f"{mark}: {key}: {error}"
    if isinstance(value, str) and "${" in value and not key.startswith("setup["):
        return f"{mark}: {key}: `{value}`: ${{...}} is not interpolated: write the value, or use --set or `base:`"
    return None


def _interpolated(value: Any, key: str, document: Document) -> str | None:
    """The first `${...}` in a tree whose types the trainer checks."""
    if isinstance(value, dict):
        return next((p for k, v in value.items() if (p := _interpolated(v, f"{key}.{k}", document))), None)
    if isinstance(value, list):
        return next((p for n, v in enumerate(value) if (p := _interpolated(v, f"{key}[{n}]", document))), None)
    mark = document.mark(key)
    return _wrong_scalar(value, str, key, mark) if isinstance(value, str) and mark else None
