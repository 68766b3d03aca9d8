"""The link agent's decisions, its lock and its records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.agent import lock as lock_module
from launcher.agent.decide import End, Facts, classify, decide, last_metrics_step, newest_checkpoint, read_trained
from launcher.agent.events import Events
from launcher.agent.lock import RunLock
from launcher.agent.place import end_time, field_of, master_port

WANTED = Facts(
    restart_count=0, stop=False, step=20, target_step=100, trained=(), snapshot_found="a", snapshot_wanted="a"
)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, None),
        ({"stop": True}, "stopped"),
        ({"step": 100}, "not_needed"),
        ({"step": 100, "stop": True}, "not_needed"),
        ({"restart_count": 1}, "crashed"),
        ({"snapshot_found": ""}, "crashed"),
        ({"snapshot_found": "b"}, "crashed"),
        ({"trained": ((1, 20),)}, None),
        ({"trained": ((1, 0), (2, 20))}, None),
        ({"trained": ((1, 20), (2, 20))}, "no_progress"),
        ({"trained": ((1, 0), (2, 20), (3, 20))}, "no_progress"),
        ({"trained": ((1, 20), (2, 20)), "step": 21}, None),
        ({"step": 0, "trained": ((1, 0), (2, 0))}, "no_progress"),
    ],
)
def test_whether_a_link_trains(change: dict[str, object], outcome: str | None) -> None:
    verdict = decide(replace(WANTED, **change))  # type: ignore[arg-type]
    assert (verdict.outcome if verdict else None) == outcome


END = End(code=0, step=20, last_step=20, target_step=100, stop=False, terminated=False, at_limit=False)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "handed_over"),
        ({"step": 100}, "finished"),
        ({"step": 100, "code": 1}, "finished"),
        ({"stop": True}, "stopped"),
        ({"stop": True, "code": -10}, "stopped"),
        ({"stop": True, "code": 9}, "crashed"),
        ({"code": 9}, "crashed"),
        ({"code": -11}, "crashed"),
        ({"code": -10}, "handed_over"),  # the request to save found it on its way out
        ({"code": 138}, "handed_over"),
        ({"code": 138, "last_step": 25}, "crashed"),
        ({"terminated": True, "code": -15}, "cancelled"),
        ({"terminated": True, "code": -15, "at_limit": True}, "timed_out"),
        ({"terminated": True, "at_limit": True}, "timed_out"),
        ({"terminated": True}, "handed_over"),
        ({"terminated": True, "last_step": 25}, "cancelled"),  # srun says 0 when Slurm ended its step
        ({"terminated": True, "last_step": 25, "stop": True}, "cancelled"),
    ],
)
def test_what_the_end_of_a_trainer_means(change: dict[str, object], outcome: str) -> None:
    assert classify(replace(END, **change)) == outcome  # type: ignore[arg-type]


def test_the_newest_checkpoint_is_the_newest_with_a_whole_manifest(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) == (0, "")
    for step, manifest in ((10, '{"step": 10}'), (20, '{"step": 20}'), (30, '{"step": '), (40, None)):
        folder = tmp_path / "checkpoints" / f"step={step:08d}"
        folder.mkdir(parents=True)
        if manifest is not None:
            (folder / "manifest.json").write_text(manifest)
    (tmp_path / "checkpoints" / "step=00000050").mkdir()
    (tmp_path / "checkpoints" / "step=00000050" / "manifest.json.tmp").write_text('{"step": 50}')
    assert newest_checkpoint(tmp_path) == (20, "step=00000020")


def test_the_last_step_of_the_metrics(tmp_path: Path) -> None:
    assert last_metrics_step(tmp_path) == 0
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    assert last_metrics_step(tmp_path) == 2


def test_which_links_trained_is_read_from_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    (tmp_path / "events").mkdir()
    for link, step in ((1, 0), (2, 10), (3, 10)):
        Events(tmp_path, link, str(link)).write("beacon", step=99)
        Events(tmp_path, link, str(link)).write("train", step=step)
    (tmp_path / "events" / "torn.jsonl").write_text('{"kind": "train", "li')
    assert read_trained(tmp_path, 3) == ((1, 0), (2, 10))
    assert sorted(path.name for path in (tmp_path / "events").iterdir())[0] == "1.n1.jsonl"


def take(run: Path, stale: float = 5.0) -> tuple[RunLock, dict[str, object] | None]:
    lock = RunLock(run, stale, {"link": 1, "job": "7"})
    return lock, lock.acquire(lambda: True)


def test_a_lock_has_one_holder_and_is_given_back(tmp_path: Path) -> None:
    first, holder = take(tmp_path)
    assert holder is None
    _, holder = take(tmp_path)
    assert holder is not None
    assert holder["uuid"] == first.uuid
    first.release()
    second, holder = take(tmp_path)
    assert holder is None
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_a_process_that_is_gone_is_taken_over_at_once(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    first, _ = take(tmp_path)
    first.path.write_text(json.dumps({**first.owner, "pid": dead.pid}))
    _, holder = take(tmp_path)
    assert holder is None


def test_a_silent_lock_of_another_machine_is_taken_over_when_it_is_stale(tmp_path: Path) -> None:
    first, _ = take(tmp_path)
    first.path.write_text(json.dumps({**first.owner, "machine": "elsewhere"}))
    _, holder = take(tmp_path)
    assert holder is not None, "it may still be alive"
    os.utime(first.path, (time.time() - 60, time.time() - 60))
    second, holder = take(tmp_path)
    assert holder is None
    assert second.holder()["uuid"] == second.uuid
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_fresh_lock_that_was_renamed_away_by_mistake_is_put_back(tmp_path: Path) -> None:
    fresh, _ = take(tmp_path)
    late = RunLock(tmp_path, 5.0, {})
    late._take_away({"uuid": "the stale one that it saw"})
    assert fresh.holder()["uuid"] == fresh.uuid


def test_a_lock_that_was_taken_over_is_noticed(tmp_path: Path) -> None:
    lock, _ = take(tmp_path, stale=0.04)
    lost: list[bool] = []
    lock.keep(lambda: lost.append(True))
    lock.path.write_text("{}")
    end = time.monotonic() + 5
    while not lost and time.monotonic() < end:
        time.sleep(0.01)
    lock.release()
    assert lost == [True]
    assert lock.path.exists(), "not ours to remove"


def test_a_zombie_counts_as_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    end = time.monotonic() + 5
    while not lock_module.process_gone(child.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert lock_module.process_gone(child.pid), "it has ended, and nobody has waited for it"
    child.wait()
    assert not lock_module.process_gone(os.getpid())


def test_the_real_end_is_slurms_where_slurm_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    assert end_time("1", 1000.0, 60.0) == 1060.0
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1030")
    assert end_time("1", 1000.0, 60.0) == 1030.0


def test_a_field_of_scontrol() -> None:
    assert field_of("JobId=1 EndTime=2026-01-01T00:00:00 Deadline=N/A", "EndTime") == "2026-01-01T00:00:00"
    assert field_of("JobId=1", "EndTime") == ""


def test_the_rendezvous_port_follows_the_job_and_is_free() -> None:
    import socket

    assert master_port("local-0badcafe-0001") == master_port("local-0badcafe-0001")
    port = master_port("4242")
    with socket.socket() as taken:
        taken.bind(("", port))
        assert master_port("4242") == port + 1


def test_the_agent_runs_on_the_oldest_python_that_it_promises() -> None:
    """Stdlib only, and no syntax or name of a later Python: it runs under the site's interpreter."""
    import ast

    folder = Path(lock_module.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.append(node.module)
            assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "agent"}, path
