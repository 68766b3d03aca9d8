"""External commands: with a time-out, and with nothing of the user's environment but what they need.

Variables such as SBATCH_TIMELIMIT beat a script's own lines, SQUEUE_FORMAT changes what is parsed, and SLURM_* of a
surrounding job confuses the new one (launcher_facts 0.9, 3.1). So a list of what may pass, not of what may not; of
Slurm's own only where the cluster is found.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "KRB5CCNAME", "SSH_AUTH_SOCK")
CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
FIXED = {"LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """What a person should read of it, in one line."""
        return " ".join((self.stderr.strip() or self.stdout.strip()).split())


class CommandMissing(Exception):
    """The program is not on PATH."""


class CommandTimeout(Exception):
    """It did not end in time. What it was to do may have happened or not."""


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a scheduler's command gets."""
    return {key: environment[key] for key in (*PASSED_ON, *CLUSTER) if key in environment} | FIXED


def run_command(command: Sequence[str], timeout: float) -> Answer:
    """Run a command to its end.

    Raises:
        CommandMissing: no such program.
        CommandTimeout: it ran longer than `timeout` seconds and was killed.
    """
    try:
        done = subprocess.run(
            list(command),
            env=clean_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandMissing(command[0]) from error
    except subprocess.TimeoutExpired as error:
        raise CommandTimeout(f"{command[0]} did not answer within {timeout:.0f} s") from error
    return Answer(done.returncode, done.stdout, done.stderr)
