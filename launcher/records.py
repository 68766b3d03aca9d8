"""The records that the launcher's parts hand to one another, and where things lie in a run directory.

Words: a run is a chain of links; a link is one Slurm job (or one turn of the local supervisor); "job" means a
Slurm job.
The layout is fixed by docs/contract.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

# Inside a snapshot, beside the source: one line, the tree's sha256. No link starts where it is missing or differs.
SNAPSHOT_MARKER = ".snapshot-sha256"


class Backend(StrEnum):
    """Where links run."""

    LOCAL = "local"
    SLURM = "slurm"


class LinkState(StrEnum):
    """What the launcher knows of one link's job."""

    INTENDED = "intended"  # row committed, submission not known to have happened
    UNSURE = "unsure"  # the submission's outcome is unknown; reconciled on every later command
    REFUSED = "refused"  # the scheduler said no; no job exists
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"  # the job is gone; `LinkOutcome` says how
    UNKNOWN = "unknown"  # could not ask; never treated as dead


class LinkOutcome(StrEnum):
    """How a link ended, judged from its own exit record and the checkpoints, never from the queue alone."""

    FINISHED = "finished"  # target step reached
    HANDED_OVER = "handed_over"  # saved at its deadline (or at a signal), more to do
    STOPPED = "stopped"  # found the stop file, or was told to stop, and saved
    NOT_NEEDED = "not_needed"  # target step already reached when it started
    NO_PROGRESS = "no_progress"  # the two links before it gained no step: it did not train
    LOCKED = "locked"  # another live link holds the run directory
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"  # ended by the wall-time limit
    CANCELLED = "cancelled"
    LOST = "lost"  # no exit record, and the job is no longer known


@dataclass(frozen=True)
class Resources:
    """What one link asks for; the experiment's facts, not the site's."""

    nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    memory: str = ""  # as Slurm spells it ("64G"); empty: the site's default

    @property
    def world_size(self) -> int:
        return self.nodes * self.tasks_per_node


@dataclass(frozen=True)
class Chain:
    """How many links, and how long each may run (seconds)."""

    links: int
    walltime_seconds: int
    first_walltime_seconds: int  # a short first link shows errors before long allocations are queued for

    def walltime(self, number: int) -> int:
        """Wall time of link `number` (from 1), in seconds."""
        return self.first_walltime_seconds if number == 1 else self.walltime_seconds


@dataclass(frozen=True)
class SlurmOptions:
    """The site's spelling of what sbatch needs. Empty text: not passed."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    exclude: tuple[str, ...] = ()
    gpu_option: str = "gpus-per-node"  # or "gres" (then --gres=gpu:N)


@dataclass(frozen=True)
class Site:
    """A site profile: facts of one machine or cluster."""

    name: str
    backend: Backend
    python: str  # interpreter of the trainer and the link agent on the site; absolute
    work_root: Path
    max_walltime_seconds: int
    save_margin_seconds: int  # LAUNCH_DEADLINE = the job's real end less this
    lock_stale_seconds: int  # a run lock whose heartbeat is older than this is taken over
    accept_interval_seconds: int  # between the two listings of acceptance
    poll_seconds: int  # least time between two questions to the scheduler
    smoke: str  # none (quick and full come with the smoke issue)
    setup: tuple[str, ...]  # shell lines before the trainer; a failing one ends the link
    env: Mapping[str, str]
    slurm: SlurmOptions = field(default_factory=SlurmOptions)

    def granted(self, chain: Chain) -> Chain:
        """The chain with the wall times that its links really get: Slurm counts whole minutes, upwards."""
        if self.backend is not Backend.SLURM:
            return chain
        whole = -(-chain.walltime_seconds // 60) * 60, -(-chain.first_walltime_seconds // 60) * 60
        return Chain(chain.links, *whole)


@dataclass(frozen=True)
class RunPaths:
    """Where things lie in one run directory (docs/contract.md)."""

    root: Path

    @property
    def run_json(self) -> Path:
        return self.root / "run.json"

    @property
    def resolved(self) -> Path:
        return self.root / "resolved.yaml"

    @property
    def links(self) -> Path:
        return self.root / "links"

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def accepted(self) -> Path:
        return self.root / "accepted"

    @property
    def stop(self) -> Path:
        return self.root / "STOP"

    def script(self, number: int) -> Path:
        return self.links / f"{number:04d}.sh"

    def link_json(self, number: int) -> Path:
        return self.links / f"{number:04d}.json"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step={step:08d}"

    def evidence(self, step: int) -> Path:
        return self.accepted / f"step={step:08d}.json"


@dataclass(frozen=True)
class RunPlan:
    """Everything that the links' scripts are rendered from: decided before anything is written or submitted."""

    run_id: str  # <name>-<yyyymmdd>-<xxxx>; DRYRUN in a dry run
    token: str  # 8 hex digits, in every job's name and comment; DRYRUN in a dry run
    name: str
    paths: RunPaths
    site: Site
    chain: Chain
    resources: Resources
    command: tuple[str, ...]  # what one task runs
    target_step: int
    snapshot_sha256: str
    snapshot: Path
    config_sha256: str

    @property
    def job_name(self) -> str:
        """The same for every link of the run, since `singleton` goes by (user, name)."""
        return f"{self.run_id}.{self.token}"
