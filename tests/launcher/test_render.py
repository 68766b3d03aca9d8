"""The script of a link, to the letter."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import SpecError
from launcher.records import Backend, Chain, Resources, RunPaths, RunPlan, Site, SlurmOptions
from launcher.render import render_link, submit_command

GOLDEN = Path(__file__).parent / "golden"

SITE = Site(
    name="cluster",
    backend=Backend.SLURM,
    python="/opt/env/bin/python",
    work_root=Path("/srv/team"),
    max_walltime_seconds=86400,
    save_margin_seconds=300,
    lock_stale_seconds=120,
    accept_interval_seconds=60,
    poll_seconds=60,
    smoke="none",
    setup=("module load cuda && module load nccl", "ulimit -n 65536"),
    env={"HF_HUB_OFFLINE": "1", "PYTHONPATH": "/opt/more", "ODD": "it's $HOME"},
    slurm=SlurmOptions(
        partition="gpu", account="speech", qos="long", constraint="h200", reservation="r1", exclude=("n1", "n2")
    ),
)
PLAN = RunPlan(
    run_id="demo-20260101-aaaa",
    token="0badcafe",
    name="demo",
    paths=RunPaths(Path("/srv/team/runs/demo-20260101-aaaa")),
    site=SITE,
    chain=Chain(links=3, walltime_seconds=14390, first_walltime_seconds=1800),
    resources=Resources(nodes=2, tasks_per_node=8, gpus_per_node=8, cpus_per_task=12, memory="900G"),
    command=("/opt/env/bin/python", "-m", "dflash_train", "train", "/srv/team/runs/demo-20260101-aaaa/resolved.yaml"),
    target_step=1000,
    snapshot_sha256="ab" * 32,
    snapshot=Path("/srv/team/snapshots") / ("ab" * 32),
    config_sha256="cd" * 32,
)
BARE = replace(
    PLAN,
    site=replace(SITE, setup=(), env={}, slurm=SlurmOptions(gpu_option="gres")),
    resources=Resources(gpus_per_node=1),
)


@pytest.mark.parametrize(("name", "plan", "number"), [("full", PLAN, 2), ("bare", BARE, 1)])
def test_the_whole_script(name: str, plan: RunPlan, number: int) -> None:
    """A change here is a change of what runs on clusters: look at it, then write the file anew."""
    assert render_link(plan, number) == (GOLDEN / f"link_{name}.sh").read_text()


@pytest.mark.parametrize("plan", [PLAN, BARE])
def test_bash_takes_it(plan: RunPlan) -> None:
    subprocess.run(["bash", "-n"], input=render_link(plan, 1), text=True, check=True)


def test_the_previous_job_stands_on_the_command_line_alone() -> None:
    script = "/srv/team/runs/demo-20260101-aaaa/links/0002.sh"
    flags = ("--parsable", "--no-requeue", "--export=NIL")
    assert submit_command(PLAN, 2, "41") == ("sbatch", *flags, "--dependency=afterany:41,singleton", script)
    assert submit_command(PLAN, 2, None) == ("sbatch", *flags, "--dependency=singleton", script)
    assert "afterany" not in render_link(PLAN, 2)


def test_nothing_of_submitits_defaults_is_left() -> None:
    script = render_link(BARE, 1)
    for word in ("submitit", "wckey", "USR2", "SUBMITIT", "--error"):
        assert word not in script


def test_wall_times_are_rounded_up_to_slurms_minutes() -> None:
    assert "#SBATCH --time=30\n" in render_link(PLAN, 1)
    assert "#SBATCH --time=240\n" in render_link(PLAN, 2)


def test_a_line_break_in_a_parameter_is_refused() -> None:
    plan = replace(PLAN, site=replace(SITE, slurm=SlurmOptions(partition="gpu\n#SBATCH --account=x")))
    with pytest.raises(SpecError, match="sbatch parameter partition"):
        render_link(plan, 1)


def test_a_dry_runs_script_differs_in_run_id_and_token_alone() -> None:
    dry = replace(PLAN, run_id="DRYRUN", token="DRYRUN", paths=RunPaths(Path("/srv/team/runs/DRYRUN")))
    dry = replace(dry, command=tuple(word.replace(PLAN.run_id, "DRYRUN") for word in PLAN.command))
    real = render_link(PLAN, 2)
    assert render_link(dry, 2) == real.replace(PLAN.run_id, "DRYRUN").replace(PLAN.token, "DRYRUN")
