"""An experiment spec: read, laid over its bases, overridden by --set, checked key by key, and turned into records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import SpecError
from launcher.keys import AdapterKind, SpecKeys
from launcher.records import Chain, Resources, Site
from launcher.schema import convert, problems, takes_text, walltime_seconds, walltime_text
from launcher.yaml_marks import Document, parse_override, read_file

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_MEMORY = re.compile(r"\d+[KMGT]?")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class SourceFile:
    """One file of the spec's base chain, as it was read."""

    path: Path
    text: str


@dataclass(frozen=True)
class Spec:
    """What is to be run, checked in itself (not against a site or the trainer)."""

    path: Path  # absolute
    name: str
    adapter: AdapterKind
    module: str
    command: tuple[str, ...]
    target_step: int | None
    config: Mapping[str, Any]
    resources: Resources
    chain: Chain
    document: Document  # for error messages and --explain
    sources: tuple[SourceFile, ...]  # the spec itself first, then its bases


def load_spec(path: Path, overrides: Sequence[str] = ()) -> Spec:
    """The spec in `path` with `--set` overrides. SpecError with file, line and key on anything that is not right."""
    document, sources = _read_chain(path, ())
    found = problems(document, SpecKeys)
    for assignment in overrides:
        override = _override(assignment)
        found += problems(override, SpecKeys)
        document = override.over(document)
    if found:
        raise SpecError("\n".join(found))
    keys: SpecKeys = convert(document, SpecKeys)
    found = list(_value_problems(keys, document))
    if found:
        raise SpecError("\n".join(found))
    seconds = walltime_seconds(keys.chain.walltime)
    first = walltime_seconds(keys.chain.first_walltime) if keys.chain.first_walltime else seconds
    return Spec(
        path=path.resolve(),
        name=keys.name,
        adapter=keys.adapter,
        module=keys.module,
        command=tuple(keys.command),
        target_step=keys.target_step,
        config=document.values.get("config", {}),
        resources=Resources(**vars(keys.resources)),
        chain=Chain(keys.chain.links, seconds, first),
        document=document,
        sources=sources,
    )


def check_against_site(spec: Spec, site: Site) -> None:
    """SpecError where the spec asks for what the site cannot give: too long, too short to save, too many nodes."""
    found = []
    first = "chain.first_walltime" if spec.document.values["chain"].get("first_walltime") else "chain.walltime"
    for number, key in {1: first, 2: "chain.walltime"}.items():
        if number > spec.chain.links:
            break
        seconds = spec.chain.walltime(number)
        mark = spec.document.mark(key)
        if seconds > site.max_walltime_seconds:
            limit = walltime_text(site.max_walltime_seconds)
            found.append(
                f"{mark}: {key}: {walltime_text(seconds)} is longer than site `{site.name}` allows "
                f"(max_walltime {limit}): use more links of at most {limit}"
            )
        if site.granted(spec.chain).walltime(number) <= site.save_margin_seconds:
            found.append(
                f"{mark}: {key}: {walltime_text(seconds)} leaves no time to train: site `{site.name}` saves "
                f"{site.save_margin_seconds} s before the end (save_margin_seconds)"
            )
    if site.backend == "local" and spec.resources.nodes > 1:
        mark = spec.document.mark("resources.nodes")
        found.append(
            f"{mark}: resources.nodes: {spec.resources.nodes} nodes on the local site `{site.name}`: it has one"
        )
    if found:
        raise SpecError("\n".join(dict.fromkeys(found)))


def _read_chain(path: Path, seen: tuple[Path, ...]) -> tuple[Document, tuple[SourceFile, ...]]:
    """The document of `path` over that of its base, and the files read."""
    resolved = path.resolve()
    if resolved in seen:
        names = " -> ".join(p.name for p in (*seen[seen.index(resolved) :], resolved))
        raise SpecError(f"{path}: `base` goes in a circle: {names}")
    document, text = read_file(path, _shown(path))
    source = SourceFile(resolved, text)
    base = document.values.get("base")
    if not isinstance(base, str) or not base:
        return document, (source,)
    base_path = path.parent / base
    if not base_path.is_file():
        raise SpecError(f"{document.mark('base')}: base: no such file: {base_path}")
    below, sources = _read_chain(base_path, (*seen, resolved))
    # `base` itself is a fact of one file, not inherited.
    inherited = Document(
        {k: v for k, v in below.values.items() if k != "base"}, {k: m for k, m in below.marks.items() if k != "base"}
    )
    return document.over(inherited), (source, *sources)


def _shown(path: Path) -> str:
    """A path as short as it can be said from the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)


def _override(assignment: str) -> Document:
    key = assignment.partition("=")[0]
    if key == "base":
        raise SpecError("--set base: a base is chosen in the file, since its place is relative to the file")
    return parse_override(assignment, takes_text(SpecKeys, key))


def _value_problems(keys: SpecKeys, document: Document) -> list[str]:
    """Values of the right type that are not allowed."""
    found: list[str] = []

    def refuse(key: str, why: str) -> None:
        found.append(f"{document.mark(key) or _first_source(document)}: {key}: {why}")

    if not _NAME.fullmatch(keys.name):
        refuse("name", f"`{keys.name}`: only a-z, 0-9, - and _, at most 40, starting with a letter or digit")
    for key in ("resources.nodes", "resources.tasks_per_node", "resources.cpus_per_task", "chain.links"):
        group, name = key.split(".")
        value = getattr(getattr(keys, group), name)
        if value < 1:
            refuse(key, f"{value}: at least 1")
    if keys.chain.links > 200:
        refuse("chain.links", f"{keys.chain.links}: at most 200")
    if keys.resources.gpus_per_node < 0:
        refuse("resources.gpus_per_node", f"{keys.resources.gpus_per_node}: at least 0")
    if keys.resources.memory and not _MEMORY.fullmatch(keys.resources.memory):
        refuse("resources.memory", f'"{keys.resources.memory}": a number with K, M, G or T, as in "64G"')
    if keys.adapter is AdapterKind.command:
        if not keys.command or not all(keys.command):
            refuse("command", "adapter command needs the program and its arguments as a list of texts")
        if keys.target_step is None or keys.target_step < 1:
            refuse("target_step", "adapter command needs the optimizer step at which the run is done, at least 1")
    else:
        if not _MODULE.fullmatch(keys.module):
            refuse("module", f"`{keys.module}` is not the name of a Python module")
        for key in ("command", "target_step"):
            if document.mark(key):
                refuse(key, "only with `adapter: command`; a dflash_train config says it itself (config.max_steps)")
    return found


def _first_source(document: Document) -> str:
    return next((mark.source for mark in document.marks.values()), "the spec")
