"""YAML read with the place, the tag and the quotes of every value, and without YAML 1.1's silent conversions.

`4:00:00` is an integer in YAML 1.1, `0123` is 83, `no` is false, the second of two equal keys wins: each of these is an
error here, with file and line. Values keep a `Mark`, so that an error or `--explain` can say where they were written.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from launcher.errors import SpecError

# YAML 1.1 wants a dot in a float; everybody writes 1e-3.
_FLOAT = re.compile(
    r"[-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)
_INT = re.compile(r"[-+]?(0|[1-9]\d{0,99})")
_PLAIN_TEXT = re.compile(r"[A-Za-z_/~][\w./~-]*( [\w./~-]+)*")


class _Loader(yaml.SafeLoader):
    """The safe loader, with floats such as 1e-3."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:float"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+0123456789."))


class _Dumper(yaml.SafeDumper):
    """The safe dumper, with every text quoted that some YAML reader could take for a number, a date or a boolean."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN_TEXT.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.ignore_aliases = lambda *_: True


@dataclass(frozen=True)
class Mark:
    """Where and how a value was written."""

    source: str  # the file as the user named it, or "--set"
    line: int  # from 1; 0 where there is no line
    tag: str  # str, int, float, bool, null, map or seq
    quoted: bool
    text: str  # a scalar as written

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True)
class Document:
    """One tree of values, and the mark of each dotted key (`a.b`, list items `a[0]`)."""

    values: dict[str, Any] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)

    def over(self, base: Document) -> Document:
        """This document laid over `base`: groups of keys merge, everything else (lists too) is replaced."""
        marks = dict(base.marks)
        for key, mark in self.marks.items():
            known = marks.get(key)
            if known is not None and not (known.tag == mark.tag == "map"):
                for old in [k for k in marks if k.startswith((key + ".", key + "["))]:
                    del marks[old]
            marks[key] = mark
        return Document(_merge(base.values, self.values), marks)

    def mark(self, key: str) -> Mark | None:
        """The mark of `key`, or of the nearest group around it that was written."""
        while key:
            if key in self.marks:
                return self.marks[key]
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return None


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        merged[key] = _merge(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def read_file(path: Path, shown: str) -> tuple[Document, str]:
    """The document in `path`, called `shown` in errors, and its text. SpecError when it cannot be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"{shown}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{shown}: cannot be read: {error}") from None
    return parse(text, shown), text


def parse(text: str, shown: str) -> Document:
    """The document in `text`. SpecError with file and line on bad YAML, duplicates, odd keys, ambiguous values."""
    node = _compose(text, shown)
    if node is None:
        raise SpecError(f"{shown}: the file is empty: expected `key: value` lines")
    if not isinstance(node, yaml.MappingNode):
        raise SpecError(f"{shown}:1: expected `key: value` lines, found {_kind(node)}")
    marks: dict[str, Mark] = {}
    return Document(_value(node, "", shown, 0, marks), marks)


def parse_override(assignment: str, is_text: bool) -> Document:
    """The document of one `--set a.b=value`. `is_text`: the key takes text, so the value is taken as it stands."""
    key, equals, raw = assignment.partition("=")
    if not equals or not all(re.fullmatch(r"\w[\w-]*", part) for part in key.split(".")):
        raise SpecError(f"--set {assignment}: expected KEY=VALUE with a dotted key, as in --set chain.links=2")
    marks: dict[str, Mark] = {}
    if is_text:
        value: Any = raw
        marks[key] = Mark("--set", 0, "str", True, raw)
    else:
        node = _compose(raw, f"--set {key}")
        if node is None:
            node = yaml.ScalarNode("tag:yaml.org,2002:null", "")
        value = _value(node, key, "--set", None, marks)
        marks.setdefault(key, _mark(node, "--set", None))
    for part in reversed(key.split(".")[1:]):
        value = {part: value}
    return Document({key.split(".")[0]: value}, marks)


def dump(tree: Mapping[str, Any]) -> str:
    """YAML text of a plain tree that every YAML reader takes for the same values (ambiguous text is quoted)."""
    return yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` most like `word`, if any is like it."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return close[0] if close else None


def _compose(text: str, shown: str) -> yaml.Node | None:
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        place = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SpecError(f"{shown}{place}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{shown}: not YAML: {' '.join(str(error).split())}") from None
    if node is not None:
        _refuse_loop(node, shown, ())
    return node


def _refuse_loop(node: yaml.Node, shown: str, above: tuple[yaml.Node, ...]) -> None:
    """SpecError where an alias stands inside its own anchor: a tree without end."""
    if any(node is other for other in above):
        raise SpecError(f"{shown}:{node.start_mark.line + 1}: an alias inside its own anchor: write the value out")
    children = [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
    if not isinstance(node, yaml.ScalarNode):
        for child in children:
            _refuse_loop(child, shown, (*above, node))


def _mark(node: yaml.Node, shown: str, line: int | None) -> Mark:
    scalar = isinstance(node, yaml.ScalarNode)
    quoted = scalar and node.style in ("'", '"', "|", ">")
    number = 0 if line is None else node.start_mark.line + 1
    return Mark(shown, number, node.tag.rsplit(":", 1)[-1], quoted, node.value if scalar else "")


def _value(node: yaml.Node, key: str, shown: str, line: int | None, marks: dict[str, Mark]) -> Any:
    """The plain value of `node`; `line` None: values without a line (an override)."""
    mark = _mark(node, shown, line)
    if key:
        marks[key] = mark
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for name, child in _items(node, shown, line):
            if name in values:
                first = marks[f"{key}.{name}" if key else name]
                raise SpecError(
                    f"{_at(child, shown, line)}: `{name}` is set a second time (first on line {first.line}): keep one"
                )
            values[name] = _value(child, f"{key}.{name}" if key else name, shown, line, marks)
        return values
    if isinstance(node, yaml.SequenceNode):
        return [_value(child, f"{key}[{n}]", shown, line, marks) for n, child in enumerate(node.value)]
    return _scalar(mark, key)


def _items(node: yaml.MappingNode, shown: str, line: int | None) -> Iterator[tuple[str, yaml.Node]]:
    for key_node, child in node.value:
        where = _at(key_node, shown, line)
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise SpecError(f"{where}: `<<` is not read here: use `base: other.yaml` to build on another file")
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            raise SpecError(f"{where}: a key must be text, found {_kind(key_node)}: quote it")
        if "." in key_node.value or "[" in key_node.value:
            raise SpecError(
                f"{where}: `{key_node.value}`: no dot or bracket in a key: write nested keys on lines of their own"
            )
        yield key_node.value, child


def _at(node: yaml.Node, shown: str, line: int | None) -> str:
    return shown if line is None else f"{shown}:{node.start_mark.line + 1}"


def _kind(node: yaml.Node) -> str:
    return {"MappingNode": "a group of keys", "SequenceNode": "a list"}.get(type(node).__name__, f"`{node.value}`")


def _scalar(mark: Mark, key: str) -> Any:
    """The value of a scalar; SpecError where YAML 1.1 would read it as something that a person did not write."""
    text = mark.text
    match mark.tag:
        case "str":
            return text
        case "null":
            return None
        case "bool" if text.lower() in ("true", "false"):
            return text.lower() == "true"
        case "int" if _INT.fullmatch(text):
            return int(text)
        case "float" if _FLOAT.fullmatch(text):
            return float(text.lower().replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
        case "bool":
            advice = "YAML reads it as a boolean: write true or false, or quote it"
        case "int" if len(text) > 100:
            text, advice = text[:20] + "…", "a number of more than 100 digits"
        case "int" | "float":
            advice = "YAML reads it as a number in another base, not as written: quote it, or write a decimal number"
        case "timestamp":
            advice = "YAML reads it as a date: quote it"
        case other:
            advice = f"the YAML tag `{other}` is not read here"
    raise SpecError(f"{mark}: {key}: `{text}`: {advice}")
