"""Events: JSON lines that a node appends and the launcher ingests."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from pathlib import Path


class Events:
    """Appends to <run>/events/<job>.<node>[.<rank>].jsonl, which nobody else writes."""

    def __init__(self, run: Path, link: int, job: str, rank: int | None = None) -> None:
        self.node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
        self.path = run / "events" / (f"{job}.{self.node}.jsonl" if rank is None else f"{job}.{self.node}.{rank}.jsonl")
        self.common = {"version": 1, "link": link, "job": job, "node": self.node, "host": socket.gethostname()}

    def write(self, kind: str, **values: object) -> None:
        event = {"uuid": uuid.uuid4().hex, "kind": kind, "time": time.time(), **self.common, **values}
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, json.dumps(event).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
