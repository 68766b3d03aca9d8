"""The narrow seam between the launcher and a trainer.

Checkpoints and the rank-zero log need no adapter: every trainer writes them as docs/contract.md says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from launcher.keys import AdapterKind
from launcher.records import Site
from launcher.spec import Spec


@dataclass(frozen=True)
class Artifact:
    """A target or a draft, as the trainer identified it."""

    path: str
    fingerprint: str  # sha256:<hex> over the contents


@dataclass(frozen=True)
class TrainerFacts:
    """What the trainer says of a good config; recorded in run.json."""

    target_step: int
    seed: int | None = None
    target: Artifact | None = None
    draft: Artifact | None = None
    data_paths: tuple[str, ...] = ()
    data_revision: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigProblem:
    """One thing that the trainer refuses."""

    key: str  # dotted, inside the config; empty: the config as a whole
    message: str
    nearest: str | None


@dataclass(frozen=True)
class CheckedConfig:
    """The trainer's answer. `problems` empty: the config is good."""

    resolved: Mapping[str, Any]  # every default and derived value filled in
    origins: Mapping[str, str]  # dotted key -> given, default or derived: <from what>
    facts: TrainerFacts | None  # None when there are problems
    problems: tuple[ConfigProblem, ...] = ()


class Adapter(Protocol):
    """One way of talking to a trainer."""

    def check(self, spec: Spec, site: Site, git_top: Path) -> CheckedConfig:
        """Ask the trainer about the spec's config.

        Raises:
            PreflightError: the trainer could not be asked.
        """
        ...

    def command(self, spec: Spec, site: Site, run_dir: Path) -> tuple[str, ...]:
        """What one task of a link runs."""
        ...


def adapter_for(kind: AdapterKind) -> Adapter:
    """The adapter of a kind."""
    if kind is AdapterKind.command:
        from launcher.adapters.command import CommandAdapter

        return CommandAdapter()
    from launcher.adapters.dflash_train import DflashTrainAdapter

    return DflashTrainAdapter()
