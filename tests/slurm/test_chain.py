"""Chains on a real Slurm: handover, time limit, failure, cancel, a killed launcher, several nodes.

Slurm's shortest time limit is a minute and it looks at limits every half minute, so the scenarios that wait for one are
submitted together with the others, before the first test looks.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.chain import cancel_run, submit_chain
from launcher.errors import SubmissionRefused
from launcher.reconcile import reconcile
from launcher.records import Backend, LinkState, Resources, RunPlan
from launcher.scheduler.slurm import SlurmScheduler
from launcher.status import RunPhase, RunStatus, read_status
from launcher.store import RunRow, Store
from tests.launcher.plans import all_ended, make_plan, outcomes, remember, steps_made, wait_until
from tests.slurm.cluster import VirtualCluster, find_program

pytestmark = pytest.mark.slurm

ENDLESS = 1_000_000
ROOT = Path(__file__).parents[2]
# A minute of wall time, of which the last 55 seconds are for the save: a link trains for about five seconds.
SHORT: Mapping[str, Any] = {"walltime": 60, "save_margin": 55}


@dataclass(frozen=True)
class Launched:
    """One run on the cluster."""

    plan: RunPlan
    run: RunRow
    store: Store

    def wait(self, seconds: float = 120) -> RunStatus:
        return wait_until(self.run, self.store, all_ended, seconds, pause=0.5)


def launch(work_root: Path, **options: Any) -> Launched:
    plan = make_plan(work_root, Backend.SLURM, **options)
    store = Store.open(work_root)
    run = remember(plan, store)
    submit_chain(plan, store, SlurmScheduler())
    return Launched(plan, run, store)


@pytest.fixture(scope="module")
def runs(cluster: VirtualCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launched]:
    """Every scenario, submitted at once."""
    work_root = tmp_path_factory.mktemp("work")
    deaf = {"step_seconds": 0.5, "checkpoint": {"interval": 4}, "fault": {"deaf": True}}
    return {
        "time limit": launch(work_root, links=3, walltime=60, save_margin=5, max_steps=ENDLESS, config=deaf),
        "handover": launch(work_root, links=9, max_steps=120, config={"step_seconds": 0.05}, **SHORT),
        "crash": launch(
            work_root, links=2, max_steps=20, config={"fault": {"crash_once": 15}, "checkpoint": {"interval": 10}}
        ),
        "no progress": launch(work_root, links=4, max_steps=20, config={"fault": {"crash_at": 5}}),
        "two nodes": launch(work_root, links=1, max_steps=5, resources=Resources(nodes=2, tasks_per_node=2)),
        "gpus": launch(work_root, links=1, max_steps=1, resources=Resources(gpus_per_node=2)),
    }


def test_a_link_that_crashes_is_followed_by_one_that_resumes(runs: dict[str, Launched]) -> None:
    launched = runs["crash"]
    status = launched.wait()
    assert outcomes(status) == ["crashed", "finished"]
    assert status.links[0].detail.startswith("trainer ended with 9")
    assert steps_made(launched.plan)[15:] == [(2, step) for step in range(11, 21)]
    assert status.phase is RunPhase.FINISHED
    assert not list(launched.plan.paths.root.rglob("*.pkl")), "submitit's own files"
    assert not list(launched.plan.paths.root.rglob("*submission*"))


def test_two_links_without_progress_stop_the_chain(runs: dict[str, Launched]) -> None:
    status = runs["no progress"].wait()
    assert outcomes(status) == ["crashed", "crashed", "no_progress", "no_progress"]
    assert status.phase is RunPhase.ENDED


def test_tasks_on_two_nodes_get_torchs_rank_variables_and_meet(runs: dict[str, Launched]) -> None:
    launched = runs["two nodes"]
    assert outcomes(launched.wait()) == ["finished"]  # the fake trainer's ranks connect to MASTER_ADDR:MASTER_PORT
    tasks = [json.loads(path.read_text()) for path in launched.plan.paths.events.glob("*.*.[0-9].jsonl")]
    ranks = sorted((task["rank"], task["local_rank"], task["world_size"]) for task in tasks)
    assert ranks == [(0, 0, 4), (1, 1, 4), (2, 0, 4), (3, 1, 4)]
    assert len({task["node"] for task in tasks}) == 2


def test_gpus_are_asked_for_as_the_site_spells_it(runs: dict[str, Launched], cluster: VirtualCluster) -> None:
    launched = runs["gpus"]
    status = launched.wait()
    assert outcomes(status) == ["finished"]
    assert "gres:gpu:2" in cluster.ask("scontrol", "-o", "show", "job", status.links[0].job_id or "")


def test_a_chain_hands_over_at_its_deadline_and_completes(runs: dict[str, Launched]) -> None:
    launched = runs["handover"]
    status = launched.wait()
    assert re.fullmatch(r"(handed_over )+finished( not_needed)+", " ".join(outcomes(status)))
    assert status.phase is RunPhase.FINISHED
    assert not status.alarms
    made = steps_made(launched.plan)
    assert [step for _, step in made] == list(range(1, 121)), "no step is lost and none is made twice"
    assert made == sorted(made)


def test_links_are_chained_and_never_requeued(runs: dict[str, Launched], cluster: VirtualCluster) -> None:
    launched = runs["time limit"]
    first, second, third = (link.job_id for link in launched.store.links(launched.run.run_id))
    record = cluster.ask("scontrol", "-o", "show", "job", third or "")
    assert f"afterany:{second}(unfulfilled)" in record
    assert "singleton(unfulfilled)" in record
    assert " Requeue=0 " in record
    assert f" JobName={launched.plan.job_name} " in record
    assert f" Comment={launched.run.run_id} {launched.run.token} link=3 " in record
    assert "afterany" not in cluster.ask("scontrol", "-o", "show", "job", first or "")


def test_cancel_of_a_whole_chain_leaves_nothing_queued(cluster: VirtualCluster, tmp_path: Path) -> None:
    other = launch(tmp_path, name="other", links=2, max_steps=ENDLESS)
    launched = launch(tmp_path, links=4, max_steps=ENDLESS)
    for each in (launched, other):
        wait_until(each.run, each.store, lambda status: status.step is not None, 30)
    report = cancel_run(launched.run, launched.store, SlurmScheduler(), lambda text: None, look_seconds=0.3)
    assert not report.survivors
    assert len(report.cancelled) == 4
    queue = "\n".join(cluster.live_jobs())
    assert launched.run.token not in queue
    assert queue.count(other.run.token) == 2, "another run of the same user is not touched"
    status = launched.wait(20)
    assert outcomes(status) == ["stopped", "cancelled", "cancelled", "cancelled"]
    assert status.checkpoint_step == status.step, "the running link saved what it had"
    assert status.phase is RunPhase.STOPPED
    cancel_run(other.run, other.store, SlurmScheduler(), lambda text: None, look_seconds=0.3)


def test_cancel_ends_a_trainer_that_does_not_save(cluster: VirtualCluster, tmp_path: Path) -> None:
    launched = launch(tmp_path, links=2, max_steps=ENDLESS, config={"fault": {"deaf": True}})
    wait_until(launched.run, launched.store, lambda status: status.step is not None, 30)
    report = cancel_run(launched.run, launched.store, SlurmScheduler(), lambda text: None, 1.0, look_seconds=0.3)
    assert not report.survivors
    assert launched.run.token not in "\n".join(cluster.live_jobs())
    assert outcomes(launched.wait(20)) == ["cancelled", "cancelled"]


def wrap_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put an sbatch of this body first on PATH; `real` in it is the real one."""
    folder.mkdir()
    wrapper = folder / "sbatch"
    wrapper.write_text(body.replace("real", str(find_program("sbatch"))))
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


SUBMIT = """
import pickle, sys
from launcher.chain import submit_chain
from launcher.scheduler.slurm import SlurmScheduler
from launcher.store import Store
plan = pickle.load(open(sys.argv[1], "rb"))
submit_chain(plan, Store.open(plan.site.work_root), SlurmScheduler())
"""


def test_a_launcher_killed_between_sbatch_and_the_id_has_its_job_adopted(
    cluster: VirtualCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It submits for real and kills whoever called it, before the id is read.
    body = f'#!/bin/sh\nreal "$@" >{tmp_path}/answer\nkill -9 $PPID\n'
    wrap_sbatch(tmp_path / "bin", monkeypatch, body)
    plan = make_plan(tmp_path / "work", Backend.SLURM, links=2, max_steps=30)
    store = Store.open(tmp_path / "work")
    run = remember(plan, store)
    (tmp_path / "plan").write_bytes(pickle.dumps(plan))
    command = [sys.executable, "-c", textwrap.dedent(SUBMIT), str(tmp_path / "plan")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    job_id = (tmp_path / "answer").read_text().strip()
    (link,) = store.links(run.run_id)
    assert (link.state, link.job_id) == (LinkState.INTENDED, None)

    notes = reconcile(store, run)
    assert notes == [f"link 1 of {run.run_id}: adopted job {job_id}, found by the run's token"]
    assert reconcile(store, run, force=True) == []
    status = wait_until(run, store, all_ended, 30)
    assert [link.job_id for link in status.links] == [job_id]
    assert outcomes(status) == ["finished"]
    assert json.loads(plan.paths.link_json(1).read_text())["job_id"] == job_id
    assert steps_made(plan) == [(1, step) for step in range(1, 31)], "nothing ran twice"
    assert len(SlurmScheduler().jobs(run.token)) == 1


def test_a_job_whose_acceptance_was_lost_on_the_way_is_found_and_the_chain_goes_on(
    cluster: VirtualCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2"
    wrap_sbatch(tmp_path / "bin", monkeypatch, f'#!/bin/sh\nreal "$@" >/dev/null\n{lost}\nexit 1\n')
    plan = make_plan(tmp_path / "work", Backend.SLURM, links=2, max_steps=5)
    store = Store.open(tmp_path / "work")
    run = remember(plan, store)
    report = submit_chain(plan, store, SlurmScheduler(), pauses=(0.2, 1.0))
    assert {job.job_id for job in SlurmScheduler().jobs(run.token)} == set(report.job_ids), "one job a link"
    assert len(report.notes) == 2
    assert outcomes(wait_until(run, store, all_ended, 30)) == ["finished", "not_needed"]


def test_what_slurm_refuses_is_refused_and_leaves_no_job(cluster: VirtualCluster, tmp_path: Path) -> None:
    plan = make_plan(tmp_path, Backend.SLURM, links=2, resources=Resources(gpus_per_node=99))
    store = Store.open(tmp_path)
    run = remember(plan, store)
    with pytest.raises(SubmissionRefused, match=r"Slurm refused: .*node configuration is not available"):
        submit_chain(plan, store, SlurmScheduler())
    assert [link.state for link in store.links(run.run_id)] == [LinkState.REFUSED]
    # Slurm keeps a record of what it refused, under an id that it did not tell.
    assert not any(job.live for job in SlurmScheduler().jobs(run.token))
    reconcile(store, run, force=True)
    assert [link.state for link in store.links(run.run_id)] == [LinkState.REFUSED]


def test_a_lost_node_ends_its_link_and_the_next_one_goes_on(cluster: VirtualCluster, tmp_path: Path) -> None:
    whole = Resources(cpus_per_task=16)  # a node of its own: no other test's job is to be lost
    launched = launch(tmp_path, links=2, max_steps=ENDLESS, resources=whole, config={"checkpoint": {"interval": 5}})
    wait_until(launched.run, launched.store, lambda status: (status.checkpoint_step or 0) > 0, 30)
    (node,) = {job.nodes for job in SlurmScheduler().jobs(launched.run.token) if job.nodes}
    cluster.ask("scontrol", "update", f"nodename={node}", "state=DOWN", "reason=test")
    try:
        status = wait_until(launched.run, launched.store, lambda status: status.links[1].state is LinkState.RUNNING, 60)
        assert status.links[0].outcome is not None
        wait_until(
            launched.run, launched.store, lambda status: any(link == 2 for link, _ in steps_made(launched.plan)), 60
        )
        made = steps_made(launched.plan)
        resumed = next(step for link, step in made if link == 2)
        assert resumed <= [step for link, step in made if link == 1][-1] + 1
    finally:
        cancel_run(launched.run, launched.store, SlurmScheduler(), lambda text: None, look_seconds=0.3)
        with contextlib.suppress(RuntimeError):  # with ReturnToService=2 it may have come back by itself
            cluster.ask("scontrol", "update", f"nodename={node}", "state=RESUME")


def test_a_controller_that_does_not_answer_makes_nothing_dead(cluster: VirtualCluster, tmp_path: Path) -> None:
    launched = launch(tmp_path, links=1, max_steps=ENDLESS)
    wait_until(launched.run, launched.store, lambda status: status.step is not None, 30)
    (tmp_path / "nowhere.conf").write_text("ClusterName=x\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("launcher.scheduler.slurm.QUERY_TIMEOUT", 1.0)
        patch.setenv("SLURM_CONF", str(tmp_path / "nowhere.conf"))
        reconcile(launched.store, launched.run, force=True)
    status = read_status(launched.run, launched.store, 0)
    assert [link.state for link in status.links] == [LinkState.UNKNOWN]
    assert status.phase is RunPhase.UNSURE
    assert any("could not be asked" in alarm for alarm in status.alarms)
    wait_until(launched.run, launched.store, lambda status: status.phase is RunPhase.RUNNING, 10)
    cancel_run(launched.run, launched.store, SlurmScheduler(), lambda text: None, look_seconds=0.3)


def test_a_link_ended_by_slurms_time_limit_is_followed_by_one_that_resumes(runs: dict[str, Launched]) -> None:
    launched = runs["time limit"]
    status = wait_until(
        launched.run, launched.store, lambda status: status.links[0].outcome is not None, 150, pause=1.0
    )
    assert status.links[0].outcome == "timed_out"
    newest = status.checkpoint_step
    assert newest
    wait_until(launched.run, launched.store, lambda status: (2, newest + 1) in steps_made(launched.plan), 30)
    report = cancel_run(
        launched.run, launched.store, SlurmScheduler(), lambda text: None, save_wait=0.0, look_seconds=0.3
    )
    assert not report.survivors
    # The deaf trainer's second link counts as stopped where its last step happened to be a saved one.
    assert re.fullmatch(r"timed_out (cancelled|stopped) cancelled", " ".join(outcomes(launched.wait(20))))
