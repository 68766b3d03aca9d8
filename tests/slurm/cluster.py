"""A real Slurm on this machine, for tests: a controller, several slurmd and a munged, all beneath one short folder.

Debian's slurmd may run several times on one host (-N), each with its own port; so a "node" is a slurmd. Nothing needs
root, systemd, cgroups or a changed /etc/hosts: every daemon runs as whoever runs the tests, in the foreground as our
child, and is ended by its pid. What the nodes claim (cores, memory, GPUs) is only claimed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
GPUS = 2


def find_program(name: str) -> str | None:
    """Daemons lie in sbin, which a plain user's PATH leaves out."""
    return shutil.which(name, path=SEARCH_PATH)


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if find_program(name) is None]


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row, below the range that the kernel gives out by itself."""
    for first in range(12000 + os.getpid() % 200 * 50, 32000, count + 1):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("", port))
            return first
    raise OSError(f"no {count} free ports in a row")


def wait_for(what: str, true: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


class VirtualCluster:
    """Boots with `start`; `stop` ends everything that it started, also after a failed start."""

    def __init__(self, nodes: int = 4) -> None:
        # A Unix socket's path holds 107 bytes at most, so not pytest's long folder.
        self.folder = Path(tempfile.mkdtemp(prefix="dy-slurm-", dir="/tmp"))
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self.conf = self.folder / "slurm.conf"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.socket = self.folder / "munge.sock"

    def start(self) -> None:
        self.folder.chmod(0o755)  # munged insists that others may pass to its socket
        self.write_configuration()
        self.spawn(
            "munged",
            "--foreground",
            f"--socket={self.socket}",
            f"--key-file={self.folder / 'munge.key'}",
            f"--pid-file={self.folder / 'munged.pid'}",
            f"--log-file={self.folder / 'munged.log'}",
            f"--seed-file={self.folder / 'munged.seed'}",
        )
        munge = [find_program("munge") or "munge", "--no-input", f"--socket={self.socket}"]
        wait_for("munged answers", lambda: self.succeeds(munge), 10)
        self.spawn("slurmctld", "-D")
        for node in self.nodes:
            self.spawn("slurmd", "-D", "-N", node, name=node)
        wait_for("all nodes are idle", self.all_idle, 30)

    def write_configuration(self) -> None:
        folder, user, host = self.folder, getpass.getuser(), platform.node().split(".")[0]
        ports = free_ports(len(self.nodes) + 1)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        for number in range(GPUS):
            (folder / f"gpu{number}").symlink_to("/dev/null")  # Slurm insists on a device
        settings = {
            "ClusterName": "draftyard",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": ports,
            "SlurmUser": user,
            "SlurmdUser": user,
            "AuthType": "auth/munge",
            "CredType": "cred/munge",
            "AuthInfo": f"socket={self.socket},cred_expire=20",
            "StateSaveLocation": folder / "state",
            "SlurmdSpoolDir": folder / "spool/%n",
            "SlurmctldPidFile": folder / "slurmctld.pid",
            "SlurmdPidFile": folder / "%n.pid",
            "SlurmctldLogFile": folder / "slurmctld.log",
            "SlurmdLogFile": folder / "%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SwitchType": "switch/none",
            "MpiDefault": "none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "JobCompType": "jobcomp/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SlurmdParameters": "config_overrides",
            "SchedulerType": "sched/backfill",
            # A test chain would otherwise wait for the scheduler's next round at each link.
            "SchedulerParameters": "sched_interval=2,sched_min_interval=0,bf_interval=2,batch_sched_delay=0",
            "GresTypes": "gpu",
            "ReturnToService": 2,
            "SlurmdTimeout": 20,
            "SlurmctldTimeout": 20,
            "MessageTimeout": 10,
            "KillWait": 2,
            "OverTimeLimit": 0,
            "MinJobAge": 300,
            "MailProg": "/bin/true",
            "PropagateResourceLimitsExcept": "ALL",
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        lines += [
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.1.{number} Port={ports + number} "
            f"CPUs=16 RealMemory=100000 Gres=gpu:{GPUS} State=UNKNOWN"
            for number, node in enumerate(self.nodes, start=1)
        ]
        names = ",".join(self.nodes)
        lines.append(f"PartitionName=main Nodes={names} Default=YES MaxTime=60 DefaultTime=1 State=UP")
        self.conf.write_text("\n".join(lines) + "\n")
        gres = f"NodeName={names} Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n"
        (folder / "gres.conf").write_text(gres)

    def spawn(self, program: str, *arguments: str, name: str = "") -> None:
        name = name or program
        path = find_program(program)
        assert path is not None, program
        with (self.folder / f"{name}.out").open("ab") as output:
            self.daemons[name] = subprocess.Popen(
                [path, *arguments],
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C of pytest is for pytest; we end them in order
            )

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
        return {**kept, "PATH": SEARCH_PATH, "SLURM_CONF": str(self.conf)}

    def ask(self, *command: str, timeout: float = 30) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def succeeds(self, command: Sequence[str]) -> bool:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0

    def all_idle(self) -> bool:
        for name, daemon in self.daemons.items():
            if daemon.poll() is not None:
                log = (self.folder / f"{name}.out").read_text()[-2000:]
                raise RuntimeError(f"{name} ended with {daemon.returncode}: {log}")
        try:
            states = self.ask("sinfo", "-h", "-N", "-o", "%T").split()
        except (RuntimeError, subprocess.TimeoutExpired):  # the controller does not listen yet
            return False
        return states.count("idle") == len(self.nodes)

    def live_jobs(self) -> list[str]:
        return self.ask("squeue", "-h", "-o", "%A %j %T").splitlines()

    def members(self) -> list[int]:
        """Processes that began with this cluster's SLURM_CONF: daemons, step managers, tasks; not pytest itself."""
        wanted, found = f"SLURM_CONF={self.conf}".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def stop(self) -> None:
        """End the jobs, then the daemons, then whatever is left, each by its pid; then the folder goes."""
        controller = self.daemons.get("slurmctld")
        if controller is not None and controller.poll() is None:
            with contextlib.suppress(RuntimeError, TimeoutError, subprocess.TimeoutExpired):
                self.ask("scancel", f"--user={getpass.getuser()}")
                self.ask("scancel", "--signal=KILL", "--full", f"--user={getpass.getuser()}")
                wait_for("no job is left", lambda: not self.live_jobs(), 15)
        munged = self.daemons.pop("munged", None)
        for daemon in self.daemons.values():
            daemon.terminate()
        for daemon in [*self.daemons.values(), *([munged] if munged else [])]:
            if daemon is munged:
                daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
