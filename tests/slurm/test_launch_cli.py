"""The verbs against a real Slurm: launch, status, logs, accept, cancel."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.main import run_cli
from tests.launcher.conftest import project  # noqa: F401  (a fixture)
from tests.slurm.cluster import VirtualCluster

pytestmark = pytest.mark.slurm
SPEC, SITE = "experiments/demo.yaml", "--site=cluster"

PROFILE = """\
name: cluster
backend: slurm
max_walltime: "01:00:00"
save_margin_seconds: 5
lock_stale_seconds: 10
accept_interval_seconds: 1
poll_seconds: 1
setup:
  - export SET_UP=yes
env: {FROM_SITE: "a b'c"}
slurm: {exclude: [node3]}
"""


@pytest.fixture
def on_cluster(project: Path, cluster: VirtualCluster) -> Path:  # noqa: F811
    """The small project with a profile of the virtual cluster."""
    (project / "site_profiles" / "cluster.yaml").write_text(PROFILE)
    return project


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run a command line that must give one JSON object on stdout."""

    def run(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run_cli([*arguments, SITE, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_a_chain_over_two_nodes_from_launch_to_accept(
    on_cluster: Path, run_json: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    layout = ["--set=resources.nodes=2", "--set=resources.tasks_per_node=2", "--set=resources.gpus_per_node=2"]
    assert run_cli([SPEC, SITE, *layout, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert "--dependency=afterany:" in captured.err
    assert run_cli([SPEC, SITE, *layout, "--yes", "--wait"]) == 0
    assert "finished at step 6 of 6" in capsys.readouterr().out
    (status,) = run_json("status", "@last")["runs"]
    run = Path(status["run_dir"])
    script = (run / "links" / "0001.sh").read_text()
    token = json.loads((run / "run.json").read_text())["token"]
    assert script.replace(status["run_id"], "DRYRUN").replace(token, "DRYRUN") == captured.out
    assert run_cli(["logs", "@last", "--link=1", SITE]) == 0
    log = capsys.readouterr().out
    assert "rank 0 of 4 link 1" in log
    assert "rank 3 of 4 link 1" in log
    assert run_json("accept", "@last")["accepted"]


def test_cancel_leaves_nothing_queued(
    on_cluster: Path, cluster: VirtualCluster, run_json: Callable[..., dict[str, Any]]
) -> None:
    launched = run_json(SPEC, "--yes", "--set=config.max_steps=100000", "--set=chain.links=4")
    run_id = launched["run_id"]
    assert len(launched["job_ids"]) == 4
    end = time.monotonic() + 60
    while (run_json("status", run_id)["runs"][0]["step"] or 0) < 3:
        assert time.monotonic() < end
        time.sleep(0.3)
    assert run_cli(["cancel", run_id, SITE, "--yes"]) == 0
    assert cluster.ask("squeue", "--noheader", "--name", f"{run_id}.{launched['token']}") == ""
    (status,) = run_json("status", run_id)["runs"]
    assert status["phase"] == "stopped"
    assert status["checkpoint_step"] == status["step"]


def test_a_refused_submission_says_why_and_leaves_no_job(
    on_cluster: Path, cluster: VirtualCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (on_cluster / "site_profiles" / "cluster.yaml").write_text(PROFILE.replace("node3", "node99"))
    assert run_cli([SPEC, SITE, "--yes", "--set=name=refused"]) == 5
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("launch: error: ")
    assert "node" in error
    assert "refused" not in cluster.ask("squeue", "--noheader", "--format=%j", "--states=PENDING,RUNNING")
