"""Processes of this machine, told apart by pid and start time: a pid alone is given out again. Linux's /proc."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it is gone (or a zombie)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold anything, spaces and brackets too
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(pid: int, ticks: int) -> bool:
    """Whether this very process still runs."""
    return start_ticks(pid) == ticks


def machine_id() -> str:
    """Names the space in which a pid means something: this boot of this host, this pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
