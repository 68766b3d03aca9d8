"""One task of a link: the prefix under srun that turns Slurm's rank variables into torch's."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .events import Events


def run_task(command: Sequence[str]) -> NoReturn:
    """Become one task of the link: torch's rank variables, a beacon, then the trainer in this very process."""
    environment = os.environ
    for name, slurm in (("RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID"), ("WORLD_SIZE", "SLURM_NTASKS")):
        if name not in environment:
            environment[name] = environment[slurm]
    job = environment.get("SLURM_JOB_ID") or environment["LAUNCH_JOB_ID"]
    rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    events = Events(Path(environment["LAUNCH_RUN_DIR"]), int(environment["LAUNCH_LINK"]), job, rank)
    events.write("task", rank=rank, local_rank=int(environment["LOCAL_RANK"]), world_size=world, pid=os.getpid())
    if world == 1:  # the contract: a trainer without RANK opens a group of one by itself
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del environment[name]
    # The request to save may come before the trainer listens, or to one that never does; that must not end it. The
    # deadline and the stop file say the same. (torchrun dies of an unhandled SIGUSR1, and its workers with it.)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.execvp(command[0], list(command))
