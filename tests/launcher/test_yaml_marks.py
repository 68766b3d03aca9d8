"""YAML is read as it was written, or refused with file and line."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings, strategies
from omegaconf import OmegaConf

from launcher.errors import SpecError
from launcher.yaml_marks import dump, parse, parse_override


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: 1e-3", {"a": 0.001}),
        ("a: -1", {"a": -1}),
        ("a: .5", {"a": 0.5}),
        ("a: true", {"a": True}),
        ("a: '0123'", {"a": "0123"}),
        ("a: {b: [1, x]}", {"a": {"b": [1, "x"]}}),
        ("a:", {"a": None}),
    ],
)
def test_plain_values_are_read_as_a_person_means_them(text: str, values: dict) -> None:
    assert parse(text, "f.yaml").values == values


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 4:00:00", 1, "quote it"),
        ("x: 1\na: 0123", 2, "quote it"),
        ("a: no", 1, "write true or false"),
        ("a: 1_000", 1, "quote it"),
        ("a: 0x1f", 1, "quote it"),
        ("a: 2026-01-01", 1, "date"),
        ("a: 1\nb: 2\na: 3", 3, "second time (first on line 1)"),
        ("a: [", 1, "not YAML"),
        ("- 1", 1, "expected `key: value` lines"),
        ("1: a", 1, "a key must be text"),
        ("a.b: 1", 1, "no dot"),
        ("a: {<<: {b: 1}}", 1, "use `base:"),
        ("x: 1\na: &a {b: *a}", 2, "inside its own anchor"),
        ("a: &a [1, *a]", 1, "inside its own anchor"),
        (f"a: {'9' * 5000}", 1, "more than 100 digits"),
        ("a: !!python/name:os.system x", 1, "tag"),
    ],
)
def test_what_yaml_would_change_in_silence_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "f.yaml")
    assert str(caught.value).startswith(f"f.yaml:{line}: ")
    assert words in str(caught.value)


def test_marks_say_where_and_how_each_value_was_written() -> None:
    marks = parse('a:\n  b: "x"\n  c: [1]\n', "f.yaml").marks
    assert str(marks["a.b"]) == "f.yaml:2"
    assert marks["a.b"].quoted
    assert str(marks["a.c[0]"]) == "f.yaml:3"
    assert not marks["a.c[0]"].quoted


def test_a_document_laid_over_another_merges_groups_and_replaces_lists() -> None:
    base = parse("a: {b: 1, c: [1, 2]}", "base.yaml")
    merged = parse("a:\n  c: [3]\n", "top.yaml").over(base)
    assert merged.values == {"a": {"b": 1, "c": [3]}}
    assert str(merged.marks["a.b"]) == "base.yaml:1"
    assert str(merged.marks["a.c"]) == "top.yaml:2"
    assert "a.c[1]" not in merged.marks


def test_an_override_is_typed_as_yaml_or_taken_as_text() -> None:
    assert parse_override("a.b=1e-3", is_text=False).values == {"a": {"b": 0.001}}
    assert parse_override("a.b=[1, 2]", is_text=False).values == {"a": {"b": [1, 2]}}
    assert parse_override("a.b=01:00:00", is_text=True).values == {"a": {"b": "01:00:00"}}
    assert str(parse_override("a.b=1", is_text=False).marks["a.b"]) == "--set"
    for bad in ("a", "=1", "a..b=1", "a b=1"):
        with pytest.raises(SpecError, match="expected KEY=VALUE"):
            parse_override(bad, is_text=False)


TREE = {
    "text": ["1e-3", "07", "no", "x: y", "", "~", "12:30", "sha256:ab", "é", "a\nb", "0o7", "-", "1_0", "true"],
    "numbers": [1e-8, 6e-4, 1.0, 3, -2, 1e300],
    "others": [None, True, {}, []],
}


@pytest.mark.parametrize("reader", [yaml.safe_load, lambda text: OmegaConf.to_container(OmegaConf.create(text))])
def test_what_is_dumped_is_the_same_to_every_reader(reader) -> None:
    assert reader(dump(TREE)) == TREE
    assert parse(dump(TREE), "f.yaml").values == TREE


@given(
    strategies.dictionaries(
        strategies.from_regex(r"[a-z_]\w{0,9}", fullmatch=True, alphabet=strategies.characters(codec="ascii")),
        strategies.one_of(
            strategies.text(strategies.characters(exclude_categories=["Cs", "Cc"])),
            strategies.floats(allow_nan=False, allow_infinity=False),
            strategies.integers(),
            strategies.booleans(),
            strategies.none(),
        ),
    )
)
@settings(max_examples=150, deadline=None)
def test_any_tree_that_is_dumped_comes_back(tree: dict) -> None:
    assert yaml.safe_load(dump(tree)) == tree
    assert parse(dump(tree), "f.yaml").values == tree


def test_infinity_and_nan_survive() -> None:
    values = parse(dump({"a": math.inf, "b": -math.inf, "c": math.nan}), "f.yaml").values
    assert values["a"] == math.inf
    assert values["b"] == -math.inf
    assert math.isnan(values["c"])
