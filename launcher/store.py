"""What the launcher remembers: `<work_root>/launcher.db`, SQLite through sqlite-utils.

Rollback journal and BEGIN IMMEDIATE, since the file may lie on a shared file system and since sqlite's deferred BEGIN
fails at once when a reader upgrades (launcher_facts 5.1). Compute nodes never open it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import LockHeld, PreflightError, UsageError
from launcher.records import Backend, LinkOutcome, LinkState, RunPaths, RunPlan

if TYPE_CHECKING:
    from sqlite_utils import Database

SCHEMA_VERSION = 1
BUSY_SECONDS = 30.0

_TABLES: dict[str, tuple[dict[str, type], tuple[str, ...]]] = {
    "runs": (
        {
            "run_id": str,
            "name": str,
            "token": str,
            "run_dir": str,
            "backend": str,
            "site_name": str,
            "links": int,
            "target_step": int,
            "created": float,
            "spec_path": str,
            "save_margin_seconds": int,
            "poll_seconds": int,
            "queue_asked": float,
            "queue_error": str,
        },
        ("run_id",),
    ),
    "links": (
        {
            "run_id": str,
            "number": int,
            "state": str,
            "job_id": str,
            "submitted": float,
            "outcome": str,
            "detail": str,
            "absent_since": float,
        },
        ("run_id", "number"),
    ),
    "acceptances": (
        {"run_id": str, "step": int, "evidence": str, "sha256": str, "accepted": float},
        ("run_id", "step"),
    ),
    "events": (
        {
            "uuid": str,
            "run_id": str,
            "link": int,
            "job_id": str,
            "node": str,
            "kind": str,
            "time": float,
            "payload": str,
        },
        ("uuid",),
    ),
    "event_files": ({"run_id": str, "name": str, "inode": int, "offset": int}, ("run_id", "name")),
    "meta": ({"key": str, "value": str}, ("key",)),
}


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

    def __init__(self, db: Database | None, path: Path) -> None:
        self.db, self.path = db, path

    @classmethod
    def open(cls, work_root: Path, read_only: bool = False) -> Store:
        """Open the database, and make it on the first writing open. Read-only without a database: empty answers.

        Raises:
            LockHeld: another process kept it locked for 30 seconds.
            PreflightError: it cannot be used (no SQLite file, a disk that refuses), or the work root not be made.
        """
        from sqlite_utils import Database

        path = work_root / "launcher.db"
        if read_only:
            if not path.exists():
                return cls(None, path)
            address = f"{path.absolute().as_uri()}?mode=ro"
            with _worded(path):
                return cls(Database(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)), path)
        try:
            work_root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PreflightError(f"work root {work_root} cannot be made: {error.strerror}") from None
        # isolation_level None: no implicit BEGIN; `writing` says when a transaction starts, and how.
        with _worded(path):
            connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        store = cls(Database(connection), path)
        with store.writing() as db:
            if "meta" not in db.table_names():
                for name, (columns, key) in _TABLES.items():
                    db.table(name).create(columns, pk=key if len(key) > 1 else key[0])
                db.table("meta").insert({"key": "schema_version", "value": str(SCHEMA_VERSION)})
        return store

    def close(self) -> None:
        if self.db is not None:
            self.db.conn.close()

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """The one way to write: BEGIN IMMEDIATE, short, never around an external command; all of it or nothing.

        Raises:
            LockHeld: another process kept it locked for 30 seconds.
        """
        if self.db is None:
            raise ValueError("this store was opened for reading")
        connection = self.db.conn
        with _worded(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def query(self, sql: str, values: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        """Rows of a SELECT; none where there is no database yet."""
        if self.db is None:
            return []
        with _worded(self.path):
            return list(self.db.query(sql, values))

    # Runs

    def add_run(self, plan: RunPlan, spec_path: Path, created: float) -> None:
        """Remember a run, before its first link is intended."""
        with self.writing() as db:
            db.table("runs").insert(
                {
                    "run_id": plan.run_id,
                    "name": plan.name,
                    "token": plan.token,
                    "run_dir": str(plan.paths.root),
                    "backend": str(plan.site.backend),
                    "site_name": plan.site.name,
                    "links": plan.chain.links,
                    "target_step": plan.target_step,
                    "created": created,
                    "spec_path": str(spec_path),
                    "save_margin_seconds": plan.site.save_margin_seconds,
                    "poll_seconds": plan.site.poll_seconds,
                    "queue_asked": None,
                    "queue_error": "",
                }
            )

    def runs(self) -> list[RunRow]:
        """All runs, newest first."""
        return [_run_row(row) for row in self.query("select * from runs order by created desc, rowid desc")]

    def find_run(self, handle: str) -> RunRow:
        """The run that `handle` names: run id, unique prefix, name that one run has, or @last.

        Raises:
            UsageError: none or several; the message lists the candidates.
        """
        runs = self.runs()
        if not runs:
            raise UsageError(f"no runs are known in {self.path.parent}; launch one, or give another --work-root")
        if handle == "@last":
            return runs[0]
        for run in runs:
            if run.run_id == handle:
                return run
        named = [run for run in runs if run.name == handle]
        matches = named or [run for run in runs if handle and run.run_id.startswith(handle)]
        if len(matches) == 1:
            return matches[0]
        what = f"{handle!r} could be any of {len(matches)} runs" if matches else f"no run is called {handle!r}"
        listed = ", ".join(run.run_id for run in (matches or runs)[:8])
        raise UsageError(f"{what}; {'give more of one of' if matches else 'known are'}: {listed}")

    def note_queue(self, run_id: str, asked: float | None, error: str) -> None:
        """Remember when the queue last answered for this run, or why it could not be asked."""
        values = {"queue_error": error} | ({} if asked is None else {"queue_asked": asked})
        with self.writing() as db:
            db.table("runs").update(run_id, values)

    # Links

    def links(self, run_id: str) -> list[LinkRow]:
        """The links of a run that were at least intended, by number."""
        rows = self.query("select * from links where run_id = ? order by number", (run_id,))
        return [_link_row(row) for row in rows]

    def put_link(self, link: LinkRow) -> None:
        """Insert a link or replace what is known of it."""
        with self.writing() as db:
            db.table("links").upsert(_link_values(link), pk=("run_id", "number"))

    def replace_link(self, old: LinkRow, new: LinkRow) -> bool:
        """Replace `old`, unless another command changed it meanwhile; whether it was replaced."""
        with self.writing() as db:
            sql = "select * from links where run_id = ? and number = ?"
            found = [_link_row(row) for row in db.query(sql, (old.run_id, old.number))]
            if found != [old]:
                return False
            db.table("links").upsert(_link_values(new), pk=("run_id", "number"))
        return True

    # Acceptances

    def add_acceptance(self, run_id: str, step: int, evidence: Path, sha256: str, when: float) -> None:
        """Remember an accepted checkpoint, after its evidence file is in place. Twice is the same as once."""
        row = {"run_id": run_id, "step": step, "evidence": str(evidence), "sha256": sha256, "accepted": when}
        with self.writing() as db:
            db.table("acceptances").upsert(row, pk=("run_id", "step"))

    def acceptances(self, run_id: str) -> list[AcceptanceRow]:
        """Accepted checkpoints by step."""
        rows = self.query("select * from acceptances where run_id = ? order by step", (run_id,))
        return [AcceptanceRow(**{**row, "evidence": Path(row["evidence"])}) for row in rows]


@contextmanager
def _worded(path: Path) -> Iterator[None]:
    """SQLite's complaints about the file as errors that a person can act on; about our own SQL as they are."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise LockHeld(
                f"{path} was locked by another launcher for {BUSY_SECONDS:.0f} s; `fuser {path}` says by whom"
            ) from error
        if type(error) not in (sqlite3.DatabaseError, sqlite3.OperationalError) or "no such" in str(error):
            raise
        raise PreflightError(
            f"{path} cannot be used: {error}: mend or restore it; moved away, it is made anew and knows new runs only"
        ) from error


def _run_row(row: dict[str, Any]) -> RunRow:
    paths = {"run_dir": Path(row["run_dir"]), "spec_path": Path(row["spec_path"])}
    return RunRow(**{**row, **paths, "backend": Backend(row["backend"])})


def _link_row(row: dict[str, Any]) -> LinkRow:
    outcome = LinkOutcome(row["outcome"]) if row["outcome"] else None
    return LinkRow(**{**row, "state": LinkState(row["state"]), "outcome": outcome})


def _link_values(link: LinkRow) -> dict[str, Any]:
    outcome = None if link.outcome is None else str(link.outcome)
    return {**vars(link), "state": str(link.state), "outcome": outcome}
