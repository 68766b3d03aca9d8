"""What the launcher remembers: `<work_root>/launcher.db`, SQLite through sqlite-utils.

Rollback journal and BEGIN IMMEDIATE, since the file may lie on a shared file system and since sqlite's deferred BEGIN
fails at once when a reader upgrades (launcher_facts 5.1). Compute nodes never open it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launcher.records import Backend, LinkOutcome, LinkState, RunPaths, RunPlan


@dataclass(frozen=True)
class RunRow:
    """One run as it is remembered."""

    run_id: str
    name: str
    token: str
    run_dir: Path
    backend: Backend
    site_name: str
    links: int  # links that were planned
    target_step: int
    created: float  # unix seconds
    spec_path: Path
    save_margin_seconds: int
    poll_seconds: int
    queue_asked: float | None = None  # when the queue last answered, unix seconds
    queue_error: str = ""  # why the last question failed; empty when it was answered

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.run_dir)


@dataclass(frozen=True)
class LinkRow:
    """One link of a run as it is remembered."""

    run_id: str
    number: int
    state: LinkState
    job_id: str | None
    submitted: float | None  # unix seconds of the intent
    outcome: LinkOutcome | None
    detail: str  # one line for a person: why it waits, how it ended, what is not known
    absent_since: float | None = None  # first look of an unbroken series that did not find the job


@dataclass(frozen=True)
class AcceptanceRow:
    """One accepted checkpoint; the evidence file is the truth."""

    run_id: str
    step: int
    evidence: Path
    sha256: str
    accepted: float  # unix seconds


class Store:
    """The database of one work root."""

    @classmethod
    def open(cls, work_root: Path, read_only: bool = False) -> Store:
        """Open the database, and make it on the first writing open. Read-only without a database: empty answers."""
        raise NotImplementedError

    def close(self) -> None: ...

    def add_run(self, plan: RunPlan, spec_path: Path, created: float) -> None:
        """Remember a run, before its first link is intended."""

    def runs(self) -> list[RunRow]:
        """All runs, newest first."""
        raise NotImplementedError

    def find_run(self, handle: str) -> RunRow:
        """The run that `handle` names: run id, unique prefix, name, or @last.

        Raises:
            UsageError: none or several; the message lists the candidates.
        """
        raise NotImplementedError

    def links(self, run_id: str) -> list[LinkRow]:
        """The links of a run that were at least intended, by number."""
        raise NotImplementedError

    def add_acceptance(self, run_id: str, step: int, evidence: Path, sha256: str, when: float) -> None:
        """Remember an accepted checkpoint, after its evidence file is in place. Twice is the same as once."""

    def acceptances(self, run_id: str) -> list[AcceptanceRow]:
        """Accepted checkpoints by step."""
        raise NotImplementedError
