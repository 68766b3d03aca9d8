"""The local backend: the same scripts, run one after the other by a detached supervisor (supervisor.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import launcher
from launcher.errors import LockHeld, SubmissionRefused
from launcher.processes import is_alive, machine_id
from launcher.records import RunPaths, RunPlan
from launcher.render import render_link
from launcher.runner import clean_environment
from launcher.scheduler.base import Job, JobEnd, JobState
from launcher.scheduler.squeue import job_state
from launcher.scheduler.turns import KILL_WAIT, SupervisorState, Turn, TurnState, cancel_file, read_state

START_SECONDS = 20.0
HEARTBEAT_LIMIT = 60.0  # seconds; judges a supervisor on another machine, whose processes cannot be seen
SUPERVISOR_GONE = "SUPERVISOR_GONE"  # the state word of a link whose supervisor was killed


class LocalScheduler:
    """The supervisors of one work root."""

    def __init__(self, work_root: Path) -> None:
        self.work_root = work_root

    def submit(self, plan: RunPlan, number: int, previous: str | None) -> str:
        script = plan.paths.script(number)
        if not script.is_file() or script.read_text() != render_link(plan, number):
            raise SubmissionRefused(f"{script} is not the script of this plan; nothing was started. Launch again")
        return f"local-{plan.token}-{number:04d}"

    def start(self, plan: RunPlan, job_ids: Sequence[str]) -> None:
        """Start the supervisor and wait until it has written its state.

        Raises:
            LockHeld: a supervisor of this run is alive.
            SubmissionRefused: it did not come up.
        """
        before = read_state(plan.paths.links)
        if before is not None and supervisor_alive(before):
            raise LockHeld(f"run {plan.run_id} already has a supervisor (pid {before.pid}); see launch status")
        output = plan.paths.logs / "supervisor.out"
        numbers = [str(int(job_id.rsplit("-", 1)[1])) for job_id in job_ids]
        home = str(Path(launcher.__file__).parent.parent)
        with output.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "launcher.scheduler.supervisor", str(plan.paths.root), *numbers],
                env=clean_environment(os.environ) | {"PYTHONPATH": home},
                cwd=plan.paths.root,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            state = read_state(plan.paths.links)
            if state is not None and state.pid == process.pid:
                return
            if process.poll() is not None:
                break
            time.sleep(0.05)
        process.kill()
        raise SubmissionRefused(f"the supervisor of run {plan.run_id} did not start; read {output}")

    def jobs(self, token: str | None = None) -> tuple[Job, ...]:
        return tuple(
            _job(state, turn) for _, state in self._states() if token in (None, state.token) for turn in state.turns
        )

    def end_of(self, job_id: str) -> JobEnd | None:
        for _, state in self._states():
            for turn in state.turns:
                if turn.job_id == job_id and (job := _job(state, turn)).state is JobState.ENDED:
                    return JobEnd(job.word, turn.exit_code, turn.signal)
        return None

    def ask_to_save(self, job_ids: Sequence[str]) -> None:
        for _, turn in self._turns(job_ids):
            if turn.state is TurnState.RUNNING and is_alive(turn.pid, turn.ticks):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(turn.pid, signal.SIGUSR1)

    def cancel(self, job_ids: Sequence[str]) -> None:
        for links, turn in self._turns(job_ids):
            cancel_file(links, turn.number).touch()  # the supervisor looks for it
        for links, turn in self._turns(job_ids):
            state = read_state(links)
            if turn.state is TurnState.RUNNING and (state is None or not supervisor_alive(state)):
                _end_orphan(turn)

    def submitting(self, script: Path) -> bool:
        """Never: there is no program between us and the supervisor."""
        return False

    def _states(self) -> Iterator[tuple[Path, SupervisorState]]:
        for file in sorted(self.work_root.glob("runs/*/links/supervisor.json")):
            state = read_state(file.parent)
            if state is not None:
                yield RunPaths(file.parent.parent).links, state

    def _turns(self, job_ids: Sequence[str]) -> Iterator[tuple[Path, Turn]]:
        by_id = {turn.job_id: (links, turn) for links, state in self._states() for turn in state.turns}
        for job_id in job_ids:
            if job_id in by_id:
                yield by_id[job_id]


def supervisor_alive(state: SupervisorState) -> bool:
    """Whether this supervisor lives: by its process here, by its heartbeat on another machine."""
    if state.machine == machine_id():
        return is_alive(state.pid, state.ticks)
    return time.time() - state.heartbeat < HEARTBEAT_LIMIT


def _job(state: SupervisorState, turn: Turn) -> Job:
    word, reason = str(turn.state), ""
    if turn.state in (TurnState.PENDING, TurnState.RUNNING) and not supervisor_alive(state):
        reason = "SupervisorGone"
        # A link outlives its supervisor only until its agent notices, saves and ends.
        if not (turn.state is TurnState.RUNNING and is_alive(turn.pid, turn.ticks)):
            word = SUPERVISOR_GONE
    job_word = JobState.ENDED if word == SUPERVISOR_GONE else job_state(word)
    return Job(turn.job_id, turn.number, state.token, job_word, word, reason, "", "local")


def _end_orphan(turn: Turn) -> None:
    """End a link that no supervisor watches: SIGTERM, then SIGKILL."""
    end = time.monotonic() + KILL_WAIT
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not is_alive(turn.pid, turn.ticks):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(turn.pid, number)
        while number == signal.SIGTERM and is_alive(turn.pid, turn.ticks) and time.monotonic() < end:
            time.sleep(0.1)
