"""Where a run is in its life, how fast it goes, and what somebody should look at."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.metrics import parse_steps, read_tail, steps_per_second
from launcher.records import LinkOutcome, LinkState, RunPaths
from launcher.status import RunPhase, find_alarms, read_status, run_phase
from launcher.store import LinkRow, RunRow, Store
from tests.launcher.test_render import PLAN


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


@pytest.fixture
def run(store: Store, tmp_path: Path) -> RunRow:
    plan = replace(PLAN, paths=RunPaths(tmp_path / "run"))
    plan.paths.checkpoints.mkdir(parents=True)
    store.add_run(plan, Path("spec.yaml"), 0.0)
    return store.find_run("@last")


def metrics(step: int, link: int, time: float, loss: float | None = 1.0) -> str:
    values = {"step": step, "link": link, "time": time, "loss": loss, "step_seconds": 0.5, "skipped": loss is None}
    return json.dumps(values) + "\n"


def links(*states: str) -> list[LinkRow]:
    """Link rows from words such as "running" or "ended/crashed"."""
    rows = []
    for number, text in enumerate(states, start=1):
        state, _, outcome = text.partition("/")
        job_id = None if state in ("intended", "refused") else str(number)
        ended = LinkOutcome(outcome) if outcome else None
        rows.append(LinkRow(PLAN.run_id, number, LinkState(state), job_id, 0.0, ended, ""))
    return rows


@pytest.mark.parametrize(
    ("states", "checkpoint", "stop", "phase"),
    [
        (["queued", "queued"], None, False, "queued"),
        (["running", "queued"], None, False, "running"),
        (["ended/handed_over", "queued"], 10, False, "queued"),
        (["running", "queued"], 1000, False, "running"),  # it still saves or validates
        (["ended/finished", "queued"], 1000, False, "finished"),
        (["ended/finished", "running"], 1000, False, "finished"),  # ends by itself within a second
        (["ended/finished", "ended/not_needed"], 1000, False, "finished"),
        (["ended/stopped", "ended/cancelled"], 10, True, "stopped"),
        (["ended/crashed", "ended/crashed"], 10, False, "ended"),
        (["intended"], None, False, "unsure"),
        (["unknown", "queued"], None, False, "unsure"),
        (["ended", "queued"], None, False, "unsure"),
        (["refused"], None, False, "ended"),
    ],
)
def test_the_phase_of_a_run(run: RunRow, states: list[str], checkpoint: int | None, stop: bool, phase: str) -> None:
    assert run_phase(links(*states), run, checkpoint, stop) == phase


@pytest.mark.parametrize(
    ("states", "phase", "alarm"),
    [
        (["ended/crashed", "queued", "queued"], RunPhase.QUEUED, "link 1 (job 1): crashed"),
        (["queued", "unknown", "queued"], RunPhase.UNSURE, "link 2 (job 2): state unknown"),
        (["queued", "queued", "refused"], RunPhase.QUEUED, "link 3: submission refused"),
        (["queued"], RunPhase.QUEUED, "only 1 of 3 links were submitted"),
        (["ended/crashed"] * 3, RunPhase.ENDED, "no link is left and the target step 1000 is not reached"),
        (["ended/handed_over", "running", "queued"], RunPhase.RUNNING, None),
        (["ended/finished", "ended/not_needed", "ended/not_needed"], RunPhase.FINISHED, None),
    ],
)
def test_alarms(run: RunRow, states: list[str], phase: RunPhase, alarm: str | None) -> None:
    found = find_alarms(run, links(*states), phase, 20, 10)
    if alarm is None:
        assert found == []
    else:
        assert any(line.startswith(alarm) for line in found), found


def test_a_link_that_will_never_start_is_an_alarm(run: RunRow) -> None:
    rows = links("queued", "queued", "queued")
    stuck = [replace(rows[0], detail="PartitionTimeLimit"), replace(rows[1], detail="Dependency"), rows[2]]
    (alarm,) = find_alarms(run, stuck, RunPhase.QUEUED, 0, None)
    assert alarm.startswith("link 1 (job 1) will never start by itself: PartitionTimeLimit")


def test_figures_come_from_the_metrics_and_the_checkpoints(run: RunRow, store: Store) -> None:
    run.paths.metrics.write_text(
        "".join(metrics(step, 1, 100.0 + step) for step in range(1, 11))
        + "".join(metrics(step, 2, 500.0 + 2 * step, None if step == 20 else 7.5) for step in range(9, 21))
        + '{"step": 20, "link": 2, "time": 1.0, "validation": {}}\n'
        + '{"step": 21, "lin'
    )
    for step, text in ((10, '{"step": 10}'), (20, "{")):
        folder = run.paths.checkpoint(step)
        folder.mkdir()
        (folder / "manifest.json").write_text(text)
    store.put_link(replace(links("running")[0], number=2))
    store.add_acceptance(run.run_id, 10, run.paths.evidence(10), "", 0.0)
    store.note_queue(run.run_id, 540.0, "")
    status = read_status(run, store, 550.0)
    assert (status.phase, status.link, status.step, status.step_age_seconds) == (RunPhase.RUNNING, 2, 20, 10.0)
    assert status.steps_per_second == pytest.approx(0.5)
    assert status.eta_seconds == pytest.approx(1960.0)
    assert (status.loss, status.checkpoint_step, status.accepted_step) == (7.5, 10, 10)
    assert status.queue_age_seconds == 10.0


def test_a_run_before_its_first_step(run: RunRow, store: Store) -> None:
    status = read_status(run, store, 0.0)
    assert (status.step, status.loss, status.steps_per_second, status.checkpoint_step) == (None, None, None, None)


def test_the_last_line_of_a_step_wins_and_a_clock_that_runs_ahead_shows_age_zero(run: RunRow, store: Store) -> None:
    run.paths.metrics.write_text(metrics(1, 1, 100.0, 9.0) + metrics(1, 2, 200.0, 3.0))
    status = read_status(run, store, 150.0)
    assert (status.step, status.loss, status.step_age_seconds) == (1, 3.0, 0.0)


def test_the_tail_is_enough_and_its_cut_first_line_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(metrics(step, 1, float(step)) for step in range(1, 101)))
    tail = read_tail(path, size=500)
    assert tail[-1].step == 100
    assert 2 < len(tail) < 10
    assert steps_per_second(tail) == pytest.approx(1.0)
    assert read_tail(tmp_path / "none") == []


def test_a_single_step_gives_its_own_rate() -> None:
    assert steps_per_second(parse_steps([metrics(1, 1, 5.0).encode()])) == 2.0
    assert steps_per_second([]) is None


def test_what_no_trainer_should_write_is_passed_over(run: RunRow, store: Store) -> None:
    run.paths.metrics.write_text(metrics(1, 1, 100.0) + metrics(2, 1, 101.0).replace('"step": 2', '"step": Infinity'))
    for step, text in ((1, '{"step": 1}'), (2, '{"step": Infinity}'), (3, "[]")):
        run.paths.checkpoint(step).mkdir()
        (run.paths.checkpoint(step) / "manifest.json").write_text(text)
    status = read_status(run, store, 150.0)
    assert (status.step, status.checkpoint_step) == (1, 1)
