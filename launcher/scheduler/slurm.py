"""Slurm: sbatch through submitit's executor, squeue, scontrol, scancel; each with time-out and clean environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import PreflightError, SubmissionRefused, SubmissionUnsure
from launcher.records import RunPlan
from launcher.render import link_executor
from launcher.runner import Answer, CommandMissing, CommandTimeout, run_command
from launcher.scheduler.base import Job, JobEnd, QueueUnavailable
from launcher.scheduler.squeue import FORMAT, Refusal, judge_refusal, of_token, parse_job, parse_queue

# sbatch retries by itself for a while when the controller is busy; cutting it short only makes outcomes unsure.
SUBMIT_TIMEOUT = 120.0
QUERY_TIMEOUT = 60.0


class SlurmScheduler:
    """This user's jobs on the cluster that SLURM_CONF (or the system's default) names."""

    def submit(self, plan: RunPlan, number: int, previous: str | None) -> str:
        executor = link_executor(plan, number, previous)
        script = plan.paths.script(number)
        if not script.is_file() or script.read_text() != executor.script():
            raise SubmissionRefused(f"{script} is not the script of this plan; nothing was submitted. Launch again")
        return executor.submit_script(script, self._sbatch)

    def _sbatch(self, command: Sequence[str]) -> str:
        try:
            answer = run_command(command, SUBMIT_TIMEOUT)
        except CommandMissing as error:
            raise PreflightError(f"{error} is not on PATH here: submit from a login node of the cluster") from error
        except CommandTimeout as error:
            raise SubmissionUnsure(str(error)) from error
        if answer.code == 0:
            return answer.stdout
        if judge_refusal(answer.stderr) is Refusal.REFUSED:
            raise SubmissionRefused(f"Slurm refused: {answer.text}")
        raise SubmissionUnsure(f"sbatch ended with {answer.code}: {answer.text}")

    def start(self, plan: RunPlan, job_ids: Sequence[str]) -> None:
        """Nothing: Slurm starts jobs by itself."""

    def jobs(self, token: str | None = None) -> tuple[Job, ...]:
        # One question for all runs; by user and filtered here, since asking for an id fails once the id is purged.
        return of_token(parse_queue(self._ask(["squeue", "--me", "-h", "-t", "all", "-o", FORMAT]).stdout), token)

    def end_of(self, job_id: str) -> JobEnd | None:
        try:
            return parse_job(self._ask(["scontrol", "-o", "show", "job", job_id]).stdout)
        except QueueUnavailable as error:
            if "Invalid job id" in str(error):
                return None
            raise

    def ask_to_save(self, job_ids: Sequence[str]) -> None:
        # --batch: to the batch shell alone, which is the link agent by now; it tells the tasks.
        if job_ids:
            self._ask(["scancel", "--batch", "--signal=USR1", *job_ids], gone_is_fine=True)

    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            self._ask(["scancel", *job_ids], gone_is_fine=True)

    def submitting(self, script: Path) -> bool:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # ended meanwhile, or another user's
                continue
            words = [os.fsdecode(argument) for argument in arguments]
            if str(script) in words and any(os.path.basename(word) == "sbatch" for word in words):
                return True
        return False

    @staticmethod
    def _ask(command: Sequence[str], gone_is_fine: bool = False) -> Answer:
        try:
            answer = run_command(command, QUERY_TIMEOUT)
        except (CommandMissing, CommandTimeout) as error:
            what = f"{error} is not on PATH here" if isinstance(error, CommandMissing) else str(error)
            raise QueueUnavailable(what) from error
        gone = "Invalid job id" in answer.stderr or "already completing" in answer.stderr
        if answer.code != 0 and not (gone_is_fine and gone):
            raise QueueUnavailable(f"{command[0]} ended with {answer.code}: {answer.text}")
        return answer
