"""External commands have a time-out and a clean environment."""

from __future__ import annotations

import sys

import pytest

from launcher.runner import CommandMissing, CommandTimeout, clean_environment, run_command


def test_only_what_finds_the_cluster_passes() -> None:
    shell = {
        "PATH": "/bin",
        "HOME": "/home/x",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "a",
        "SLURM_JOB_ID": "7",
        "SLURM_TIME_FORMAT": "relative",
        "SBATCH_TIMELIMIT": "1",
        "SQUEUE_FORMAT": "%i",
        "SRUN_CPUS_PER_TASK": "1",
        "HF_TOKEN": "secret",
    }
    kept = clean_environment(shell)
    assert {key for key in kept if key in shell} == {"PATH", "HOME", "SLURM_CONF", "SLURM_CLUSTERS"}
    assert kept["LC_ALL"] == "C.UTF-8"


def test_what_a_command_says() -> None:
    answer = run_command(["sh", "-c", "echo out; echo 'an error' >&2; exit 3"], 10)
    assert (answer.code, answer.stdout, answer.text) == (3, "out\n", "an error")


def test_a_command_that_is_missing_or_hangs_is_told_apart() -> None:
    with pytest.raises(CommandMissing):
        run_command(["no-such-program-here"], 10)
    with pytest.raises(CommandTimeout, match="did not answer"):
        run_command([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
