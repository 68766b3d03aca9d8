"""Where and until when a link runs: its real end, and the rendezvous of its tasks."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import zlib


def scontrol(*arguments: str) -> str:
    """What scontrol prints; empty when it cannot be asked. A user's time format would change EndTime."""
    environment = {key: value for key, value in os.environ.items() if key != "SLURM_TIME_FORMAT"}
    command = ["scontrol", *arguments]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout if done.returncode == 0 else ""
    return ""


def field_of(record: str, name: str) -> str:
    """The value of `name=` in a line of `scontrol -o`; empty without it."""
    return next((word[len(name) + 1 :] for word in record.split() if word.startswith(name + "=")), "")


def end_time(job: str, started: float, walltime_seconds: float) -> float:
    """When the scheduler ends this job, unix seconds: it may have been given less than it asked for (--time-min)."""
    if os.environ.get("SLURM_JOB_END_TIME", "").isdigit():
        return float(os.environ["SLURM_JOB_END_TIME"])
    if "SLURM_JOB_ID" in os.environ:
        text = field_of(scontrol("-o", "show", "job", job), "EndTime")
        with contextlib.suppress(ValueError):
            return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    return started + walltime_seconds


def master_address() -> str:
    """Where rank zero listens: the first node's address as Slurm knows it, since names need not resolve everywhere."""
    if "MASTER_ADDR" in os.environ:
        return os.environ["MASTER_ADDR"]
    nodes = scontrol("show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")).split()
    if not nodes:
        return "127.0.0.1" if "SLURM_JOB_ID" not in os.environ else socket.gethostname()
    return field_of(scontrol("-o", "show", "node", nodes[0]), "NodeAddr") or nodes[0]


def master_port(job: str) -> int:
    """A port from the job's id, the next free one on this node, which is the first of the job."""
    first = int(job) if job.isdigit() else zlib.crc32(job.encode())
    for offset in range(200):
        port = 20000 + (first + offset) % 20000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("no free port for the rendezvous between 20000 and 39999")
