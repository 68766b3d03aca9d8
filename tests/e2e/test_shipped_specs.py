"""What the README tells people to type works with the files that are shipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cli.main import run_cli

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize("site", ["local", "slurm"])
def test_the_demo_can_be_launched_with_each_shipped_profile(
    site: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TOP)
    assert run_cli(["experiments/demo.yaml", f"--site=site_profiles/{site}.yaml", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "target step   500" in shown.err
    assert "-m dflash_train train" in shown.out


def test_a_wall_time_on_slurm_is_whole_minutes_in_plan_and_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TOP)
    assert run_cli(["experiments/demo.yaml", "--site=site_profiles/slurm.yaml", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "4 links of 00:20:00, the first of 00:01:00" in shown.err
    assert "#SBATCH --time=1\n" in shown.out
    assert "--walltime=60" in shown.out
