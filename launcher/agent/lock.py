"""The lock of a run directory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path


def machine_id() -> str:
    """Names the space in which a pid means something: this boot of this host, this pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def process_gone(pid: object) -> bool:
    """Whether a process of this machine is gone, or only a zombie that nobody reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text[text.rindex(")") + 2] in "ZX"


class RunLock:
    """<run>/lock: made by a hard link, so it appears whole and only once; its holder touches it.

    singleton and the dependency already keep links apart. What is left is a node that the scheduler gave up and whose
    tasks still run: two generations must not write one run directory.
    """

    def __init__(self, run: Path, stale_seconds: float, owner: dict[str, object]) -> None:
        self.path = run / "lock"
        self.stale_seconds = stale_seconds
        self.uuid = uuid.uuid4().hex
        self.probe = run / f"lock.{self.uuid}"
        self.owner = {"uuid": self.uuid, "machine": machine_id(), "pid": os.getpid(), **owner}
        self.done = threading.Event()

    def holder(self) -> dict[str, object]:
        """What the lock file says; empty when there is none or it cannot be read."""
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def acquire(self, given_up: Callable[[], bool]) -> dict[str, object] | None:
        """Take the lock, waiting for a stale one; None when it is ours, else who holds it."""
        end = time.monotonic() + self.stale_seconds + 2
        self.probe.write_text(json.dumps(self.owner))
        try:
            while True:
                with contextlib.suppress(FileExistsError):
                    os.link(self.probe, self.path)
                    return None
                holder = self.holder()
                if self._stale(holder):
                    self._take_away(holder)
                elif time.monotonic() > end or given_up():
                    return holder
                else:
                    time.sleep(min(1.0, self.stale_seconds / 5))
        finally:
            self.probe.unlink()

    def _stale(self, holder: dict[str, object]) -> bool:
        if holder.get("machine") == self.owner["machine"] and process_gone(holder.get("pid")):
            return True  # its process is gone, and we are where that can be seen
        os.utime(self.probe)  # the file server's clock, not ours, against the file server's clock
        try:
            return self.probe.stat().st_mtime - self.path.stat().st_mtime > self.stale_seconds
        except FileNotFoundError:
            return False

    def _take_away(self, holder: dict[str, object]) -> None:
        """Rename the stale lock away; put it back if somebody else was quicker and it is a new one by now."""
        aside = self.path.with_name(f"lock.stale.{self.uuid}")
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return
        try:
            fresh = json.loads(aside.read_text()).get("uuid") != holder.get("uuid")
        except (OSError, ValueError):
            fresh = False
        if fresh:
            with contextlib.suppress(FileExistsError):
                os.link(aside, self.path)
        aside.unlink()

    def keep(self, lost: Callable[[], None]) -> None:
        """Touch the lock from a thread until `release`; `lost` is called once when it is no longer ours."""

        def beat() -> None:
            while not self.done.wait(min(15.0, self.stale_seconds / 4)):
                if self.holder().get("uuid") != self.uuid:
                    lost()
                    return
                with contextlib.suppress(OSError):
                    os.utime(self.path)

        threading.Thread(target=beat, daemon=True).start()

    def release(self) -> None:
        self.done.set()
        if self.holder().get("uuid") == self.uuid:
            self.path.unlink()
