"""The local backend runs the very scripts of the chain, in sequence, as Slurm would."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from launcher.chain import cancel_run, submit_chain
from launcher.errors import LockHeld
from launcher.processes import is_alive
from launcher.records import Resources, RunPlan
from launcher.scheduler.local import LocalScheduler
from launcher.scheduler.turns import SupervisorState, read_state
from launcher.status import RunPhase
from launcher.store import RunRow, Store
from tests.launcher.plans import all_ended, make_plan, outcomes, remember, steps_made, wait_until

ENDLESS = 1_000_000  # steps: more than any test waits for


def launch(plan: RunPlan) -> tuple[Store, RunRow, LocalScheduler]:
    store = Store.open(plan.site.work_root)
    run = remember(plan, store)
    scheduler = LocalScheduler(plan.site.work_root)
    submit_chain(plan, store, scheduler)
    return store, run, scheduler


def supervisor(plan: RunPlan) -> SupervisorState:
    state = read_state(plan.paths.links)
    assert state is not None
    return state


def test_a_chain_hands_over_at_its_deadline_and_completes(tmp_path: Path) -> None:
    # The deadline lies two seconds after a link's start, so no link can make all steps and three make them surely.
    config = {"step_seconds": 0.05}
    plan = make_plan(tmp_path, links=8, walltime=62, save_margin=60, max_steps=70, config=config)
    store, run, _ = launch(plan)
    status = wait_until(run, store, all_ended, 60)
    assert re.fullmatch(r"(handed_over )+finished( not_needed)+", " ".join(outcomes(status)))
    assert status.phase is RunPhase.FINISHED
    assert status.over
    assert not status.alarms
    assert status.step == status.checkpoint_step == 70
    made = steps_made(plan)
    assert [step for _, step in made] == list(range(1, 71)), "no step is lost and none is made twice"
    assert made == sorted(made)


def test_launch_returns_while_the_chain_runs_without_it(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=1, max_steps=ENDLESS)
    store, run, scheduler = launch(plan)
    wait_until(run, store, lambda status: status.step is not None, 20)
    state = supervisor(plan)
    assert os.getsid(state.pid) == state.pid != os.getsid(0), "a closed terminal must not end it"
    cancel_run(run, store, scheduler, lambda text: None, look_seconds=0.1)


def test_a_link_that_crashes_is_followed_by_one_that_resumes(tmp_path: Path) -> None:
    config = {"fault": {"crash_once": 15}, "checkpoint": {"interval": 10}}
    plan = make_plan(tmp_path, links=2, max_steps=20, config=config)
    store, run, _ = launch(plan)
    status = wait_until(run, store, all_ended, 30)
    assert outcomes(status) == ["crashed", "finished"]
    assert steps_made(plan)[15:] == [(2, step) for step in range(11, 21)], "link 2 goes on from the checkpoint"
    assert status.phase is RunPhase.FINISHED


def test_two_links_without_progress_stop_the_chain(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=4, max_steps=20, config={"fault": {"crash_at": 5}})
    store, run, _ = launch(plan)
    status = wait_until(run, store, all_ended, 30)
    assert outcomes(status) == ["crashed", "crashed", "no_progress", "no_progress"]
    assert status.phase is RunPhase.ENDED
    assert any("no link is left" in alarm for alarm in status.alarms)


def test_the_wall_time_ends_a_trainer_that_is_deaf(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=1, walltime=2, save_margin=1, max_steps=ENDLESS, config={"fault": {"deaf": True}})
    store, run, _ = launch(plan)
    status = wait_until(run, store, all_ended, 30)
    assert outcomes(status) == ["timed_out"]


def test_cancel_lets_the_running_link_save_and_leaves_nothing(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=3, max_steps=ENDLESS)
    store, run, scheduler = launch(plan)
    wait_until(run, store, lambda status: status.step is not None, 20)
    said: list[str] = []
    report = cancel_run(run, store, scheduler, said.append, look_seconds=0.1)
    assert not report.survivors
    assert len(report.cancelled) == 3
    status = wait_until(run, store, all_ended, 10)
    assert outcomes(status) == ["stopped", "cancelled", "cancelled"]
    assert status.phase is RunPhase.STOPPED
    assert status.checkpoint_step == status.step, "the running link saved what it had"
    assert said[0].startswith("cancelling 2 waiting: link 3")


def test_cancel_ends_a_link_that_does_not_save(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=2, max_steps=ENDLESS, config={"fault": {"deaf": True}})
    store, run, scheduler = launch(plan)
    wait_until(run, store, lambda status: status.step is not None, 20)
    report = cancel_run(run, store, scheduler, lambda text: None, save_wait=0.5, look_seconds=0.1)
    assert not report.survivors
    assert outcomes(wait_until(run, store, all_ended, 10)) == ["cancelled", "cancelled"]


def test_a_killed_supervisor_is_shown_and_its_links_are_lost(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=3, max_steps=ENDLESS)
    store, run, _ = launch(plan)
    wait_until(run, store, lambda status: status.step is not None, 20)
    os.kill(supervisor(plan).pid, signal.SIGKILL)
    status = wait_until(run, store, all_ended, 20)
    assert outcomes(status) == ["handed_over", "lost", "lost"], "the link in progress notices, saves and ends"
    assert status.phase is RunPhase.ENDED
    assert status.checkpoint_step == status.step


def test_a_killed_supervisor_and_its_link_are_never_shown_as_running(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=2, max_steps=ENDLESS)
    store, run, _ = launch(plan)
    wait_until(run, store, lambda status: status.step is not None, 20)
    state = supervisor(plan)
    os.kill(state.pid, signal.SIGKILL)
    os.killpg(state.turns[0].pid, signal.SIGKILL)
    status = wait_until(run, store, all_ended, 10)
    assert outcomes(status) == ["lost", "lost"]


def test_cancel_after_the_supervisor_was_killed_ends_its_link(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=2, max_steps=ENDLESS, config={"fault": {"deaf": True}})
    store, run, scheduler = launch(plan)
    wait_until(run, store, lambda status: status.step is not None, 20)
    os.kill(supervisor(plan).pid, signal.SIGKILL)
    turn = supervisor(plan).turns[0]
    report = cancel_run(run, store, scheduler, lambda text: None, save_wait=0.0, look_seconds=0.1)
    assert not report.survivors
    assert not is_alive(turn.pid, turn.ticks)


def test_several_tasks_get_their_ranks_and_one_rendezvous(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=1, max_steps=5, resources=Resources(tasks_per_node=3))
    store, run, _ = launch(plan)
    assert outcomes(wait_until(run, store, all_ended, 30)) == ["finished"]
    tasks = [json.loads(path.read_text()) for path in sorted(plan.paths.events.glob("*.[0-9].jsonl"))]
    assert [(task["rank"], task["local_rank"], task["world_size"]) for task in tasks] == [
        (0, 0, 3),
        (1, 1, 3),
        (2, 2, 3),
    ]


def test_a_failing_setup_line_ends_the_link_with_its_code_and_says_which(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=1, setup=("true && export SEEN=1", "test -d /nowhere && true", "echo never"))
    store, run, _ = launch(plan)
    status = wait_until(run, store, all_ended, 20)
    assert outcomes(status) == ["crashed"]
    assert status.links[0].detail == "setup line failed with 1: test -d /nowhere && true"
    assert "never" not in next(plan.paths.logs.glob("0001.*.out")).read_text()


def test_site_environment_and_nothing_of_the_shell_reaches_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SHELL", "x")
    shown = tmp_path / "environment"
    plan = make_plan(
        tmp_path, links=1, max_steps=1, env={"ODD": "a 'quoted' $VALUE\nwith a break"}, setup=(f"env -0 > {shown}",)
    )
    store, run, _ = launch(plan)
    wait_until(run, store, all_ended, 20)
    environment = dict(item.split("=", 1) for item in shown.read_text().split("\0") if item)
    assert environment["ODD"] == "a 'quoted' $VALUE\nwith a break"
    assert environment["PYTHONPATH"] == str(plan.snapshot)
    assert "SECRET_OF_THE_SHELL" not in environment
    assert Path(environment["HOME"]).is_dir()


def test_a_link_does_not_start_on_another_snapshot(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=1)
    (plan.snapshot / ".snapshot-sha256").write_text("cd" * 32)
    store, run, _ = launch(plan)
    status = wait_until(run, store, all_ended, 20)
    assert outcomes(status) == ["crashed"]
    assert "the snapshot is not the one launched" in status.links[0].detail


def test_the_running_link_holds_the_lock_and_a_second_supervisor_is_refused(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, links=2, max_steps=ENDLESS)
    store, run, scheduler = launch(plan)
    wait_until(run, store, lambda status: status.step is not None, 20)
    lock = json.loads((plan.paths.root / "lock").read_text())
    assert (lock["link"], lock["pid"]) == (1, supervisor(plan).turns[0].pid)
    with pytest.raises(LockHeld, match="already has a supervisor"):
        scheduler.start(plan, [f"local-{plan.token}-0002"])
    cancel_run(run, store, scheduler, lambda text: None, look_seconds=0.1)
    assert not (plan.paths.root / "lock").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_damaged_state_file_hides_no_other_run(tmp_path: Path, content: str) -> None:
    plan = make_plan(tmp_path, links=1)
    damaged = tmp_path / "runs" / "other" / "links" / "supervisor.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text(content)
    store, run, _ = launch(plan)
    assert outcomes(wait_until(run, store, all_ended, 20)) == ["finished"]
