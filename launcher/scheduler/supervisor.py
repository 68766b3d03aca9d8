"""The local backend's scheduler: one detached process a run that gives each link its turn.

`python -m launcher.scheduler.supervisor RUN_DIR NUMBER...` runs links/NNNN.sh one after the other, as Slurm would with
afterany: whatever one ends with, the next has its turn. It sends the save signal and enforces the wall time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.processes import machine_id, start_ticks
from launcher.records import RunPaths
from launcher.runner import clean_environment
from launcher.scheduler.turns import KILL_WAIT, SupervisorState, Turn, TurnState, cancel_file, write_state

POLL_SECONDS = 0.1
HEARTBEAT_SECONDS = 5.0

log = logging.getLogger("launcher.supervisor")


@dataclass(frozen=True)
class Limits:
    """The times of one link, in seconds."""

    walltime: float
    save_margin: float


class Supervisor:
    """Runs a chain's links in sequence."""

    def __init__(self, paths: RunPaths, numbers: Sequence[int]) -> None:
        self.paths = paths
        self.told_to_end = False
        submitted = {number: json.loads(paths.link_json(number).read_text()) for number in numbers}
        self.limits = {
            number: Limits(float(link["walltime_seconds"]), float(link["save_margin_seconds"]))
            for number, link in submitted.items()
        }
        self.state = SupervisorState(
            token=submitted[numbers[0]]["token"],
            machine=machine_id(),
            pid=os.getpid(),
            ticks=start_ticks(os.getpid()) or 0,
            heartbeat=time.time(),
            turns=tuple(Turn(number, link["job_id"]) for number, link in submitted.items()),
        )

    def run(self) -> None:
        """Every link's turn, to the last."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "told_to_end", True))
        self.put()
        for turn in self.state.turns:
            if self.cancelled(turn.number):
                self.put(replace(turn, state=TurnState.CANCELLED))
            else:
                self.put(self.give_turn(turn))
        log.info("all %d links had their turn", len(self.state.turns))

    def cancelled(self, number: int) -> bool:
        return self.told_to_end or cancel_file(self.paths.links, number).exists()

    def put(self, turn: Turn | None = None) -> None:
        """Write the state down, with this turn in it."""
        turns = self.state.turns
        if turn is not None:
            turns = tuple(turn if turn.number == other.number else other for other in turns)
        self.state = replace(self.state, heartbeat=time.time(), turns=turns)
        write_state(self.paths.links, self.state)

    def give_turn(self, turn: Turn) -> Turn:
        """Run one link to its end."""
        output = self.paths.logs / f"{turn.number:04d}.{turn.job_id}.out"
        with output.open("ab") as file:
            process = subprocess.Popen(
                ["/bin/bash", str(self.paths.script(turn.number))],
                env=clean_environment(os.environ) | {"LAUNCH_JOB_ID": turn.job_id},
                cwd=self.paths.root,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        turn = replace(turn, state=TurnState.RUNNING, pid=process.pid, ticks=start_ticks(process.pid) or 0)
        self.put(turn)
        log.info("link %d runs as process %d", turn.number, process.pid)
        why = self.watch(process, turn.number)
        self.kill_group(process.pid, signal.SIGKILL)  # what the script left behind, as Slurm does
        code = process.returncode
        state = why or (TurnState.COMPLETED if code == 0 else TurnState.FAILED)
        log.info("link %d ended: %s, exit code %d", turn.number, state, code)
        return replace(turn, state=state, exit_code=max(code, 0), signal=max(-code, 0))

    def watch(self, process: subprocess.Popen[bytes], number: int) -> TurnState | None:
        """Wait for a link's end; why it was ended, or None when it ended by itself."""
        started = beat = time.monotonic()
        limits, why, asked, killed = self.limits[number], None, False, 0.0
        while process.poll() is None:
            now = time.monotonic()
            if now - beat >= HEARTBEAT_SECONDS:
                beat = now
                self.put()
            if not asked and now - started >= limits.walltime - limits.save_margin:
                asked = True
                process.send_signal(signal.SIGUSR1)
            if why is None and (self.cancelled(number) or now - started >= limits.walltime):
                why, killed = TurnState.CANCELLED if self.cancelled(number) else TurnState.TIMEOUT, now
                self.kill_group(process.pid, signal.SIGTERM)
            if why is not None and now - killed >= KILL_WAIT:
                self.kill_group(process.pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        return why

    @staticmethod
    def kill_group(group: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)


def main(arguments: Sequence[str]) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    Supervisor(RunPaths(Path(arguments[0])), [int(number) for number in arguments[1:]]).run()


if __name__ == "__main__":
    main(sys.argv[1:])
