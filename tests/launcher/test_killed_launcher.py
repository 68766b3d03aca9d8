"""`kill -9` of `launch` while it submits, on real processes: what `status` says then, and that it says what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.main import run_cli

REPOSITORY = Path(__file__).resolve().parents[2]

# Ends the launcher as kill -9 would, just after (or before) the given call of one of its functions.
KILLED = """\
import importlib, os, sys
module, name, when, which, *arguments = sys.argv[1:]
owner = importlib.import_module(module)
for part in name.split(".")[:-1]:
    owner = getattr(owner, part)
attribute = name.split(".")[-1]
function, calls = getattr(owner, attribute), 0
def call(*positional, **named):
    global calls
    calls += 1
    if when == "before" and calls == int(which):
        os.kill(os.getpid(), 9)
    result = function(*positional, **named)
    if calls == int(which):
        os.kill(os.getpid(), 9)
    return result
setattr(owner, attribute, call)
from launcher.cli.main import main
main(arguments)
"""


def launch_killed(*place: str) -> None:
    command = [sys.executable, "-c", KILLED, *place, "experiments/demo.yaml", "--site=here", "--yes"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def statuses(capsys: pytest.CaptureFixture[str]) -> Iterator[dict[str, Any]]:
    """The run as `status` shows it, each time it is asked for some 20 seconds."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        capsys.readouterr()
        assert run_cli(["status", "--site=here", "--json"]) == 0
        yield json.loads(capsys.readouterr().out)["runs"][0]
        time.sleep(0.3)


@pytest.mark.parametrize(
    ("place", "ends", "submitted"),
    [
        (("launcher.store", "Store.add_run", "after", "1"), [], 0),
        (("launcher.scheduler.local", "LocalScheduler.submit", "after", "1"), ["refused"], 0),
        (("launcher.chain", "write_intent", "after", "3"), ["lost", "refused"], 1),
        (("launcher.scheduler.local", "LocalScheduler.start", "before", "1"), ["lost", "lost"], 2),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else None,
)
def test_a_chain_whose_launcher_was_killed_is_named_with_what_to_do(
    project: Path, capsys: pytest.CaptureFixture[str], place: tuple[str, ...], ends: list[str], submitted: int
) -> None:
    launch_killed(*place)
    status = next(status for status in statuses(capsys) if status["over"])
    assert [link["outcome"] or link["state"] for link in status["links"]] == ends
    for link in status["links"]:
        assert "the launcher ended before it" in link["detail"]
    if submitted < 2:
        again = f"only {submitted} of 2 links were submitted: for a whole chain: launch "
        assert f"{again}{project}/experiments/demo.yaml" in status["alarms"]
    assert not list(project.glob("work/runs/*/metrics.jsonl"))


def test_a_launcher_killed_once_its_supervisor_runs_costs_the_run_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch_killed("launcher.scheduler.local", "LocalScheduler.start", "after", "1")
    status = next(status for status in statuses(capsys) if status["over"])
    assert (status["phase"], status["alarms"]) == ("finished", [])


def test_a_link_whose_supervisor_is_about_to_start_is_not_taken_for_lost(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = "import launcher.scheduler.local as l, time; start = l.LocalScheduler.start\n"
    wait += "l.LocalScheduler.start = lambda *a: (print('submitted', flush=True), input(), start(*a))\n"
    wait += "from launcher.cli.main import main; main()\n"
    command = [sys.executable, "-c", wait, "experiments/demo.yaml", "--site=here", "--yes"]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "submitted\n"
        asked = statuses(capsys)
        seen: list[dict[str, Any]] = []
        while len({status["queue_age_seconds"] for status in seen} - {None}) < 3 and len(seen) < 12:
            seen.append(next(asked))
        launcher.communicate("\n", timeout=30)
    assert {link["state"] for status in seen for link in status["links"]} == {"queued"}
    assert launcher.returncode == 0
    assert next(status for status in asked if status["over"])["phase"] == "finished"
