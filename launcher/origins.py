"""Which file and line, flag, default or derivation set each resolved value (`launch show --explain`, run.json)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from launcher.adapters.base import CheckedConfig
from launcher.errors import SpecError
from launcher.keys import SiteKeys, SpecKeys
from launcher.profile import Profile
from launcher.schema import convert
from launcher.spec import Spec
from launcher.yaml_marks import Document, nearest


@dataclass(frozen=True)
class Origin:
    """One resolved value and where it came from."""

    key: str  # dotted; keys of the site profile begin with `site.`, of the trainer's config with `config.`
    value: Any
    source: str  # file:line, --set, default, or derived: <from what>

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}  ({self.source})"


def origins(spec: Spec, profile: Profile, checked: CheckedConfig) -> tuple[Origin, ...]:
    """The origin of every value of spec, trainer config and site profile, in this order."""
    found = []
    spec_tree = asdict(convert(spec.document, SpecKeys)) | {"config": {}}
    for key, value in leaves(spec_tree):
        if key != "config":
            found.append(Origin(key, _plain(value), _written(spec.document, key) or "default"))
    for key, value in leaves(checked.resolved):
        found.append(Origin(f"config.{key}", value, _config_source(spec.document, key, checked.origins)))
    for key, value in leaves(asdict(convert(profile.document, SiteKeys))):
        found.append(Origin(f"site.{key}", _plain(value), _written(profile.document, key) or "default"))
    return tuple(found)


def explain(known: tuple[Origin, ...], key: str) -> tuple[Origin, ...]:
    """The origins of `key`, or of all values in the group `key`. SpecError with the nearest key where there is none."""
    found = tuple(o for o in known if o.key == key or o.key.startswith((key + ".", key + "[")))
    if found:
        return found
    names = [o.key for o in known]
    close = nearest(key, names) or next((n for n in names if n.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]), None)
    raise SpecError(f"no key `{key}`" + (f": did you mean `{close}`?" if close else ""))


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a tree that is not a non-empty group."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _written(document: Document, key: str) -> str | None:
    """Where `key` itself was written (a group around it does not count)."""
    mark = document.marks.get(key)
    return str(mark) if mark else None


def _config_source(document: Document, key: str, trainer: Mapping[str, str]) -> str:
    written = _written(document, f"config.{key}")
    said = trainer.get(key, "")
    if written:
        return f"{written}, then {said}" if said.startswith("derived") else written
    return "the trainer's default" if said in ("default", "given", "") else said


def _plain(value: Any) -> Any:
    """An enum as its text."""
    return getattr(value, "value", value)
