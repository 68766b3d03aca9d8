"""One link, from its first line to its exit record."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .decide import (
    EXIT_NOT_TRAINED,
    End,
    Facts,
    Verdict,
    classify,
    decide,
    last_metrics_step,
    newest_checkpoint,
    read_trained,
)
from .events import Events
from .lock import RunLock
from .place import end_time, master_address, master_port

POLL_SECONDS = 0.2
SAVE_PATIENCE = 10.0  # seconds in which a trainer may see the deadline or the stop file by itself
LIMIT_SLACK = 5.0  # seconds; a SIGTERM this near to the end is the wall-time limit's
DETAIL_LIMIT = 1000  # characters; an event line stays far below 4 KB, so that one write is one line


def ignore_save_signal() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


class Link:
    """One link, from its first line to its exit record."""

    def __init__(self, options: argparse.Namespace, command: Sequence[str]) -> None:
        self.options, self.command = options, list(command)
        self.run = Path(os.environ["LAUNCH_RUN_DIR"])
        self.number, self.target_step = int(os.environ["LAUNCH_LINK"]), int(os.environ["LAUNCH_TARGET_STEP"])
        self.slurm = "SLURM_JOB_ID" in os.environ
        self.job = os.environ.get("SLURM_JOB_ID") or os.environ["LAUNCH_JOB_ID"]
        self.events = Events(self.run, self.number, self.job)
        self.signals: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.lock_lost = False
        self.start_step, self.checkpoint = newest_checkpoint(self.run)
        self.end = end_time(self.job, float(os.environ["LAUNCH_STARTED"]), options.walltime)

    @property
    def stop(self) -> bool:
        return (self.run / "STOP").exists()

    def facts(self) -> Facts:
        marker = Path(self.options.snapshot_marker)
        self.start_step, self.checkpoint = newest_checkpoint(self.run)
        return Facts(
            restart_count=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            stop=self.stop,
            step=self.start_step,
            target_step=self.target_step,
            trained=read_trained(self.run, self.number),
            snapshot_found=marker.read_text().strip() if marker.is_file() else "",
            snapshot_wanted=self.options.snapshot_sha256,
        )

    def run_link(self) -> int:
        """The whole life of the link; its exit code."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self.on_signal)
        self.events.write("beacon", step=self.start_step, checkpoint=self.checkpoint, pid=os.getpid(), end=self.end)
        verdict = decide(self.facts())
        if verdict:
            return self.leave(verdict)
        lock = RunLock(self.run, self.options.lock_stale, {"link": self.number, "job": self.job, **self.events.common})
        holder = lock.acquire(lambda: "SIGTERM" in self.signals or self.stop)
        if holder is not None:
            who = f"link {holder.get('link')}, job {holder.get('job')} on {holder.get('node')}"
            return self.leave(Verdict("locked", f"the run directory is held by {who}", EXIT_NOT_TRAINED))
        try:
            verdict = decide(self.facts())  # again: whoever held the lock may have gone on until now
            return self.leave(verdict) if verdict else self.train(lock)
        finally:
            lock.release()

    def leave(self, verdict: Verdict) -> int:
        self.record(verdict.outcome, verdict.exit_code, verdict.detail)
        return verdict.exit_code

    def record(self, outcome: str, code: int, detail: str = "") -> None:
        self.events.write(
            "exit",
            outcome=outcome,
            exit_code=code if code >= 0 else 128 - code,
            signal=-code if code < 0 else 0,
            signals=self.signals[:20],
            step=newest_checkpoint(self.run)[0],
            start_step=self.start_step,
            checkpoint=self.checkpoint,
            detail=detail[:DETAIL_LIMIT],
        )

    def on_signal(self, number: int, _frame: object) -> None:
        self.signals.append(signal.Signals(number).name)
        if number == signal.SIGTERM:  # a request to save is passed on by `wait`, which knows whether it is news
            self.tell(number)

    def tell(self, number: int) -> None:
        """Pass a signal on. srun takes SIGTERM for "end the step at once", so it gets SIGUSR1, which it forwards."""
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGUSR1 if self.slurm else number)

    def on_lock_lost(self) -> None:
        self.lock_lost = True
        self.tell(signal.SIGUSR1)

    def commands(self) -> Iterator[tuple[list[str], dict[str, str]]]:
        """(argv, additional environment) of each process to start here."""
        options = self.options
        agent = os.path.dirname(os.path.abspath(__file__))
        task = [sys.executable, "-B", agent, "--task", "--", *self.command]
        world = options.nodes * options.tasks_per_node
        if self.slurm:
            per_task = str(options.cpus_per_task)  # srun of 22.05 to 23.02 does not take it from the job
            yield [
                "srun", "--kill-on-bad-exit=1", "--wait=600", "--unbuffered", f"--nodes={options.nodes}",
                f"--ntasks={world}", f"--ntasks-per-node={options.tasks_per_node}", f"--cpus-per-task={per_task}",
                *task,
            ], {"SRUN_CPUS_PER_TASK": per_task}  # fmt: skip
            return
        for rank in range(world):
            yield task, {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}

    def train(self, lock: RunLock) -> int:
        """Start the trainer, see it through, and say how it ended."""
        deadline = self.end - self.options.save_margin
        os.environ["LAUNCH_DEADLINE"] = f"{deadline:.0f}"
        if self.options.nodes * self.options.tasks_per_node > 1:
            os.environ["MASTER_ADDR"] = master_address()
            os.environ["MASTER_PORT"] = str(master_port(self.job))
        self.events.write("train", step=self.start_step, checkpoint=self.checkpoint, deadline=deadline)
        for argv, extra in self.commands():
            environment = {**os.environ, **extra}
            # srun must hear SIGUSR1 to forward it; a task must not die of it (task.py). No thread runs here yet.
            ignore = None if self.slurm else ignore_save_signal
            started = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, preexec_fn=ignore)
            self.processes.append(started)
        lock.keep(self.on_lock_lost)
        if "SIGTERM" in self.signals:  # it came before there was a process to tell
            self.tell(signal.SIGTERM)
        code = self.wait(deadline)
        end = End(
            code=code,
            step=newest_checkpoint(self.run)[0],
            last_step=last_metrics_step(self.run),
            target_step=self.target_step,
            stop=self.stop,
            terminated="SIGTERM" in self.signals,
            at_limit=time.time() >= self.end - LIMIT_SLACK,
        )
        outcome, detail = classify(end), f"trainer ended with {code} at step {end.last_step}"
        if end.last_step > end.step:
            detail += f"; the newest complete checkpoint is of step {end.step}"
        if self.lock_lost:
            outcome, detail = "locked", detail + "; another link took the run's lock over"
        self.record(outcome, code, detail)
        return code if code >= 0 else 128 - code

    def wait(self, deadline: float) -> int:
        """Wait for all processes, pass on a request to save; the first bad exit code, else 0.

        The trainer sees the deadline and the stop file by itself. A signal at that moment would only find it on its way
        out, where an interpreter has put the default action back, which is to die; so then the signal comes late, for
        programs that listen to nothing else.
        """
        parent, asked, failed, known_since = os.getppid(), False, 0, 0.0
        patience = min(SAVE_PATIENCE, self.options.save_margin / 4)
        while True:
            codes = [process.poll() for process in self.processes]
            bad = next((code for code in codes if code), 0)
            if bad and not failed:
                failed = bad  # one rank is gone: the others would wait for it in a collective
                self.tell(signal.SIGTERM)
            if all(code is not None for code in codes):
                return failed
            orphaned = not self.slurm and os.getppid() != parent  # nobody enforces the wall time any more
            now = time.time()
            if self.stop or now >= deadline:
                known_since = known_since or now
                due = now - known_since >= patience
            else:
                due = orphaned or "SIGUSR1" in self.signals
            if due and not asked:
                asked = True
                self.signals.append("orphaned" if orphaned else "asked to save")
                self.tell(signal.SIGUSR1)
            time.sleep(POLL_SECONDS)
