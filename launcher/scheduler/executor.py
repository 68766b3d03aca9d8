"""submitit's SlurmExecutor with a script of our own: its parameter checks and #SBATCH lines, none of its pickles.

Way C of the design: five underscore hooks are overridden, so submitit is pinned (>=1.5.4,<1.6) and the whole script is
held by a golden file. One fresh executor a link, since submitit's parameters stick (a None never clears an old value).
Imported only where a script is rendered or a link submitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import SlurmExecutor

from launcher.errors import SubmissionUnsure

JOB_ID = re.compile(r"([0-9]+)(;[A-Za-z0-9_.-]+)?")


class LinkExecutor(SlurmExecutor):
    """Renders and submits one link's script."""

    def __init__(self, folder: Path, body: str = "", previous: str | None = None) -> None:
        super().__init__(folder, python="")
        self.body, self.previous = body, previous

    @classmethod
    def affinity(cls) -> int:
        """Scripts are rendered on machines without Slurm too (a dry run); submitit would refuse to exist there."""
        return 2

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        text = super()._make_submission_file_text(command, uid)
        flags = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
        # wckey is submitit's own idea, and a site without wckeys may refuse it.
        kept = [line for line in flags if not line.startswith("#SBATCH --wckey=")]
        return "\n".join(["#!/bin/bash", *kept, "", self.body])

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # A command line beats SBATCH_* variables and #SBATCH lines: what must not be lost stands here too.
        dependency = f"afterany:{self.previous},singleton" if self.previous else "singleton"
        flags = ["--parsable", "--no-requeue", "--export=NIL", f"--dependency={dependency}"]
        return ["sbatch", *flags, str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        """The id in `--parsable` output, its last line that is not empty; a banner's "job 7" is never taken for it.

        Raises:
            SubmissionUnsure: sbatch said yes, and what it printed is no id.
        """
        text = string.decode() if isinstance(string, bytes) else string
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        match = JOB_ID.fullmatch(lines[-1]) if lines else None
        if match is None:
            raise SubmissionUnsure(f"sbatch printed {text.strip()[:200]!r} where a job id was expected")
        return match.group(1)

    def _internal_process_submissions(self, delayed_submissions: list[Any]) -> list[Any]:
        """submitit's own `submit(function)`: it would leave a pickle and run that."""
        raise TypeError("a link has no function to pickle; use submit_script")

    def command_line(self, script: Path) -> tuple[str, ...]:
        """The sbatch command line of `script`."""
        return tuple(self._make_submission_command(script))

    def script(self) -> str:
        """The whole script."""
        return self._make_submission_file_text("", "")

    def submit_script(self, script: Path, run: Callable[[Sequence[str]], str]) -> str:
        """Submit a script that lies in place already; `run` runs sbatch and returns what it printed."""
        return self._get_job_id_from_submission_command(run(self.command_line(script)))
