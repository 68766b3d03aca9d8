"""Every key of an experiment spec and of a site profile: OmegaConf structured configs (a test freezes the list).

Experiment facts live in the spec only, facts of a machine or cluster in the site profile only; neither may set the
other's keys. "???" is OmegaConf's mark of a required key. schema.py checks documents against these classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from launcher.records import Backend

REQUIRED: Any = "???"
QUOTED_TEXT = {"chain.walltime", "chain.first_walltime", "max_walltime"}
"""Keys that take a wall time: text in quotes, since YAML 1.1 reads 4:00:00 as the integer 14400."""


class AdapterKind(StrEnum):
    """How the launcher talks to the trainer."""

    dflash_train = "dflash_train"
    command = "command"


class GpuOption(StrEnum):
    """How the site wants GPUs to be asked for."""

    gpus_per_node = "gpus-per-node"
    gres = "gres"


class Smoke(StrEnum):
    """What is run on one node before the chain."""

    none = "none"


@dataclass
class ResourceKeys:
    nodes: int = 1
    tasks_per_node: int = 1
    """Processes a node; one a GPU."""
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    memory: str = ""
    """Memory of a node as Slurm spells it ("64G"); empty: the site's default."""


@dataclass
class ChainKeys:
    links: int = 1
    """Links (Slurm jobs) submitted, each starting when the one before has ended."""
    walltime: str = REQUIRED
    """Wall time of a link, in quotes: "HH:MM:SS" or "D-HH:MM:SS"."""
    first_walltime: str = ""
    """Wall time of the first link, where a short one should show errors early; empty: as the others."""


@dataclass
class SpecKeys:
    name: str = REQUIRED
    """Begins every run id: lower case letters, digits, - and _, at most 40."""
    base: str = ""
    """Another spec that this one builds on; a path relative to this file."""
    adapter: AdapterKind = AdapterKind.dflash_train
    """dflash_train: a trainer that checks its own config; command: any program that keeps docs/contract.md."""
    module: str = "dflash_train"
    """Python module that serves `check` and `train` of the contract (adapter dflash_train)."""
    command: list[str] = field(default_factory=list)
    """The program and its arguments (adapter command); {python}, {run_dir} and {config} are filled in."""
    target_step: int | None = None
    """Optimizer step at which the run is done (adapter command; a dflash_train config says it itself)."""
    config: dict[str, Any] = field(default_factory=dict)
    """The trainer's config; its keys are checked by the trainer."""
    resources: ResourceKeys = field(default_factory=ResourceKeys)
    chain: ChainKeys = field(default_factory=ChainKeys)


@dataclass
class SlurmKeys:
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    exclude: list[str] = field(default_factory=list)
    """Nodes that no link may use."""
    gpu_option: GpuOption = GpuOption.gpus_per_node


@dataclass
class SiteKeys:
    name: str = REQUIRED
    backend: Backend = REQUIRED
    python: str = ""
    """Interpreter of the trainer and the link agent: a path (~, or relative to the git top) or a name on PATH.
    Empty: the launcher's own."""
    work_root: str = ""
    """Where snapshots, runs and the database lie; empty: work/ in the git top."""
    max_walltime: str = REQUIRED
    """Longest wall time that the site allows a link, in quotes."""
    save_margin_seconds: int = 120
    """A link is told to save this long before its real end."""
    lock_stale_seconds: int = 180
    """A run lock whose heartbeat is older than this is taken over."""
    accept_interval_seconds: int = 120
    """Time between the two listings of acceptance."""
    poll_seconds: int = 60
    """Least time between two questions to the scheduler."""
    smoke: Smoke = Smoke.none
    setup: list[str] = field(default_factory=list)
    """Shell lines before the trainer; a failing one ends the link."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the links."""
    slurm: SlurmKeys = field(default_factory=SlurmKeys)
