"""What the launcher remembers, and that two launchers can remember at once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import store as store_module
from launcher.errors import LockHeld, PreflightError, UsageError
from launcher.records import LinkOutcome, LinkState
from launcher.store import LinkRow, RunRow, Store
from tests.launcher.test_render import PLAN

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


def add(store: Store, run_id: str, name: str, created: float) -> RunRow:
    store.add_run(replace(PLAN, run_id=run_id, name=name), Path("/srv/team/spec.yaml"), created)
    return store.find_run(run_id)


def test_a_run_is_remembered_whole(store: Store) -> None:
    run = add(store, PLAN.run_id, PLAN.name, 12.5)
    assert (run.run_id, run.token, run.run_dir) == (PLAN.run_id, PLAN.token, PLAN.paths.root)
    assert (run.backend, run.site_name, run.links, run.target_step) == ("slurm", "cluster", 3, 1000)
    assert (run.created, run.spec_path) == (12.5, Path("/srv/team/spec.yaml"))
    assert (run.queue_asked, run.queue_error) == (None, "")
    store.note_queue(run.run_id, 20.0, "")
    store.note_queue(run.run_id, None, "no answer")
    again = store.find_run(run.run_id)
    assert (again.queue_asked, again.queue_error) == (20.0, "no answer"), (
        "a failed look does not forget the last good one"
    )


@pytest.mark.parametrize(
    ("handle", "found"),
    [("@last", "b-2026-02"), ("a-2026-01", "a-2026-01"), ("a-2", "a-2026-01"), ("b", "b-2026-02"), ("c-2026-03", None)],
)
def test_a_run_is_found_by_id_prefix_name_or_last(store: Store, handle: str, found: str | None) -> None:
    add(store, "a-2026-01", "first", 1.0)
    add(store, "c-2026-01", "c", 2.0)
    add(store, "b-2026-02", "b", 3.0)
    if found is None:
        with pytest.raises(
            UsageError, match="no run is called 'c-2026-03'; known are: b-2026-02, c-2026-01, a-2026-01"
        ):
            store.find_run(handle)
    else:
        assert store.find_run(handle).run_id == found


@pytest.mark.parametrize("handle", ["twice", "twice-2026"])
def test_a_handle_that_fits_several_lists_them(store: Store, handle: str) -> None:
    add(store, "twice-2026-01", "twice", 1.0)
    add(store, "twice-2026-02", "twice", 2.0)
    with pytest.raises(UsageError, match="could be any of 2 runs; give more of one of: twice-2026-02, twice-2026-01"):
        store.find_run(handle)


def test_without_runs_the_error_says_where_it_looked(store: Store) -> None:
    with pytest.raises(UsageError, match="no runs are known"):
        store.find_run("@last")


def test_a_link_is_replaced_only_by_who_knows_its_last_state(store: Store) -> None:
    old = LinkRow("r", 1, LinkState.INTENDED, None, 1.0, None, "")
    queued = replace(old, state=LinkState.QUEUED, job_id="7")
    store.put_link(old)
    assert store.replace_link(old, queued)
    assert not store.replace_link(old, replace(old, state=LinkState.UNSURE)), "another command was quicker"
    assert store.links("r") == [queued]
    ended = replace(queued, state=LinkState.ENDED, outcome=LinkOutcome.FINISHED, detail="x", absent_since=3.0)
    store.put_link(ended)
    assert store.links("r") == [ended]


def test_an_acceptance_twice_is_the_same_as_once(store: Store) -> None:
    for _ in range(2):
        store.add_acceptance("r", 20, Path("e20"), "sha", 5.0)
    store.add_acceptance("r", 10, Path("e10"), "sha", 6.0)
    assert [row.step for row in store.acceptances("r")] == [10, 20]
    assert store.acceptances("r")[1].evidence == Path("e20")


def test_reading_without_a_database_finds_nothing_and_makes_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "none", read_only=True)
    assert store.runs() == []
    assert store.links("r") == []
    assert not (tmp_path / "none").exists()


def test_a_reader_sees_what_a_writer_wrote_and_cannot_write(store: Store, tmp_path: Path) -> None:
    add(store, "a", "a", 1.0)
    reader = Store.open(tmp_path, read_only=True)
    assert [run.run_id for run in reader.runs()] == ["a"]
    with pytest.raises(Exception, match="readonly"):
        reader.add_acceptance("a", 1, Path("e"), "", 0.0)


def test_a_failed_write_leaves_nothing_behind(store: Store) -> None:
    def write() -> None:
        with store.writing() as db:
            db.table("meta").insert({"key": "half", "value": "done"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert [row["key"] for row in store.query("select key from meta")] == ["schema_version"]


def test_a_database_that_stays_locked_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.05)
    holder, other = Store.open(tmp_path), Store.open(tmp_path)
    with holder.writing(), pytest.raises(LockHeld, match="was locked by another launcher"), other.writing():
        pass


WRITER = """
import sys
from pathlib import Path
from launcher.store import Store
store = Store.open(Path(sys.argv[1]))
for _ in range(50):
    with store.writing() as db:  # read, then write: where a deferred BEGIN fails at once
        count = int(db.table("meta").get("count")["value"])
        db.table("meta").update("count", {"value": str(count + 1)})
"""


def test_four_launchers_write_at_once_and_none_is_lost(store: Store, tmp_path: Path) -> None:
    with store.writing() as db:
        db.table("meta").insert({"key": "count", "value": "0"})
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT) for _ in range(4)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    assert store.query("select value from meta where key = 'count'") == [{"value": "200"}]


def test_the_journal_is_a_rollback_journal(store: Store) -> None:
    """WAL needs memory that all hosts share; a login node beside another has none."""
    assert store.query("pragma journal_mode") == [{"journal_mode": "delete"}]


def test_a_database_that_stays_locked_is_said_so_to_a_reader_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(tmp_path)
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.05)
    reader = Store.open(tmp_path, read_only=True)
    holder = sqlite3.connect(tmp_path / "launcher.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LockHeld, match="was locked by another launcher"):
        reader.runs()
    holder.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_said_so(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "launcher.db").write_text("a text that some program wrote here")
    with pytest.raises(PreflightError, match=r"launcher.db cannot be used: file is not a database: mend or restore"):
        Store.open(tmp_path, read_only).runs()


def test_a_work_root_that_cannot_be_made_is_said_so() -> None:
    with pytest.raises(PreflightError, match="work root /dev/null/x cannot be made: Not a directory"):
        Store.open(Path("/dev/null/x"))
