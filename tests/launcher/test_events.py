"""Events are taken in once, whole lines only, whatever the files go through."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.events import beacons, exit_records, ingest_events
from launcher.records import RunPaths
from launcher.store import RunRow, Store
from tests.launcher.test_render import PLAN


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


@pytest.fixture
def run(store: Store, tmp_path: Path) -> RunRow:
    plan = replace(PLAN, paths=RunPaths(tmp_path / "run"))
    plan.paths.events.mkdir(parents=True)
    store.add_run(plan, Path("spec.yaml"), 0.0)
    return store.find_run("@last")


def line(uuid: str, kind: str = "beacon", **values: object) -> str:
    event = {"uuid": uuid, "kind": kind, "time": 1.0, "link": 1, "job": "7", "node": "n1", "host": "h", "end": 60.0}
    return json.dumps({**event, **values}) + "\n"


def exit_line(uuid: str, outcome: str, time: float = 2.0) -> str:
    values = {"outcome": outcome, "exit_code": 0, "signal": 0, "step": 20, "start_step": 10, "detail": "d"}
    return line(uuid, "exit", time=time, **values)


def known(store: Store) -> list[str]:
    return [row["uuid"] for row in store.query("select uuid from events order by rowid")]


def test_twice_is_the_same_as_once(store: Store, run: RunRow) -> None:
    (run.paths.events / "7.n1.jsonl").write_text(line("a") + line("b"))
    assert ingest_events(store, run) == 2
    assert ingest_events(store, run) == 0
    assert known(store) == ["a", "b"]


def test_a_torn_last_line_waits_until_it_is_whole(store: Store, run: RunRow) -> None:
    path = run.paths.events / "7.n1.jsonl"
    whole = line("a") + line("b")
    path.write_text(whole[:-20])
    assert ingest_events(store, run) == 1
    path.write_text(whole)
    assert ingest_events(store, run) == 1
    assert known(store) == ["a", "b"]


@pytest.mark.parametrize("rewrite", ["replaced", "shorter"])
def test_a_file_that_was_rewritten_is_read_again_without_harm(store: Store, run: RunRow, rewrite: str) -> None:
    path = run.paths.events / "7.n1.jsonl"
    path.write_text(line("a") + line("b"))
    ingest_events(store, run)
    if rewrite == "replaced":
        path.rename(path.with_suffix(".old"))
        path.write_text(line("b") + line("c") + line("a"))
    else:
        path.write_text(line("c"))
    ingest_events(store, run)
    assert known(store) == ["a", "b", "c"]


def test_lines_that_are_no_events_are_passed_over(store: Store, run: RunRow) -> None:
    (run.paths.events / "7.n1.jsonl").write_text("no json\n[]\n{}\n\n" + line("a"))
    assert ingest_events(store, run) == 1


def test_the_newest_exit_record_of_a_link_counts(store: Store, run: RunRow) -> None:
    (run.paths.events / "7.n1.jsonl").write_text(exit_line("a", "finished", 3.0) + exit_line("b", "crashed", 2.0))
    ingest_events(store, run)
    record = exit_records(store, run.run_id)[1, "7"]
    assert (record.outcome, record.step, record.start_step, record.detail) == ("finished", 20, 10, "d")


def test_beacons_say_which_job_a_link_has(store: Store, run: RunRow) -> None:
    (run.paths.events / "7.n1.jsonl").write_text(line("a"))
    ingest_events(store, run)
    assert (beacons(store, run.run_id)[1].job_id, beacons(store, run.run_id)[1].node) == ("7", "n1")
    assert beacons(store, "another run") == {}


@pytest.mark.parametrize("change", [{"outcome": "a word of a later version"}, {"step": None}, {"step": float("inf")}])
def test_an_exit_record_that_cannot_be_read_hides_no_other(
    store: Store, run: RunRow, change: dict[str, object]
) -> None:
    odd = {**json.loads(exit_line("a", "finished", 3.0)), **change}
    (run.paths.events / "7.n1.jsonl").write_text(json.dumps(odd) + "\n" + exit_line("b", "crashed", 2.0))
    ingest_events(store, run)
    assert [record.outcome for record in exit_records(store, run.run_id).values()] == ["crashed"]
