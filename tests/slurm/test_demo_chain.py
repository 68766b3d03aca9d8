"""The main job on a real Slurm: the demo's draft, trained over two links, accepted, exported and decoded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dflash_train.cli import main as dflash_train
from launcher.cli.main import run_cli
from tests.slurm.cluster import VirtualCluster

pytestmark = pytest.mark.slurm
SPEC = Path(__file__).parents[2] / "experiments" / "demo.yaml"

# Slurm's limits are whole minutes: a margin of 50 s lets the first link of one minute hand over after ten seconds.
PROFILE = """\
name: cluster
backend: slurm
work_root: {work_root}
max_walltime: "01:00:00"
save_margin_seconds: 50
lock_stale_seconds: 10
accept_interval_seconds: 1
poll_seconds: 1
env: {{OMP_NUM_THREADS: "2"}}
"""


def test_the_demo_from_launch_to_decoding(
    cluster: VirtualCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "cluster.yaml"
    site.write_text(PROFILE.format(work_root=tmp_path / "work"))
    changes = [
        "--set=config.max_steps=300",
        "--set=config.validation.interval=0",
        "--set=chain.first_walltime=00:01:00",
    ]
    assert run_cli([str(SPEC), f"--site={site}", *changes, "--yes", "--wait"]) == 0
    capsys.readouterr()
    assert run_cli(["status", "@last", f"--site={site}", "--json"]) == 0
    (status,) = json.loads(capsys.readouterr().out)["runs"]
    assert [link["outcome"] for link in status["links"]][:2] == ["handed_over", "finished"]
    run_dir = Path(status["run_dir"])

    refused = CliRunner().invoke(dflash_train, ["export", str(run_dir)])
    assert refused.exit_code == 8, "no checkpoint leaves its run that was not accepted"
    assert run_cli(["accept", "@last", f"--site={site}"]) == 0
    exported = CliRunner().invoke(dflash_train, ["export", str(run_dir)])
    assert exported.exit_code == 0, exported.output
    assert {p.name for p in (run_dir / "export" / "step=00000300").iterdir()} == {
        "config.json", "model.safetensors", "dflash_train_meta.json",
    }  # fmt: skip
    measured = CliRunner().invoke(dflash_train, ["evaluate", str(run_dir), "--limit", "4", "--json"])
    assert measured.exit_code == 0, measured.output
    result = json.loads((run_dir / "evaluations" / "step=00000300.json").read_text())
    assert result["identical"]
    assert result["links"] == 2
    assert result["last_loss"] < result["first_loss"] / 2
    assert result["sets"]["unseen"]["wer"] <= 0.10
    assert result["sets"]["unseen"]["mal"] > 1.5
