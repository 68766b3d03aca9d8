"""A run on this machine, from `launch` to `accept`, through the command line and with real processes."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.main import run_cli
from launcher.store import Store

REPOSITORY = Path(__file__).resolve().parents[2]
SPEC, SITE = "experiments/demo.yaml", "--site=here"
Json = Callable[..., dict[str, Any]]


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Json:
    """Run a command line that must give one JSON object on stdout."""

    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert run_cli([*arguments, SITE, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_a_run_from_launch_to_accept(project: Path, run_json: Json, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([SPEC, SITE, "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert run_cli([SPEC, SITE, "--yes", "--wait"]) == 0
    captured = capsys.readouterr()
    assert "finished at step 6 of 6" in captured.out
    assert "plan" in captured.err

    (status,) = run_json("status", "@last")["runs"]
    run_id, run = status["run_id"], Path(status["run_dir"])
    assert (status["phase"], status["step"], status["checkpoint_step"]) == ("finished", 6, 6)
    assert status["links"][0]["outcome"] == "finished"
    token = json.loads((run / "run.json").read_text())["token"]
    script = (run / "links" / "0001.sh").read_text()
    assert script.replace(run_id, "DRYRUN").replace(token, "DRYRUN") == dry
    assert run_id in script
    assert token in script

    assert list(status) == [
        *("run_id", "name", "run_dir", "site", "backend", "created", "phase", "over", "step", "step_age_seconds"),
        *("target_step", "steps_per_second", "eta_seconds", "loss", "link", "planned_links", "links", "accepted_step"),
        *("checkpoint_step", "queue_age_seconds", "alarms"),
    ]
    assert list(status["links"][0]) == ["link", "job_id", "state", "outcome", "submitted", "detail"]

    logs = run_json("logs", run_id)["logs"]
    assert logs[0]["link"] == 1
    assert run_cli(["logs", run_id, "--link=1", SITE]) == 0
    assert "fake trainer: link 1 ends at step 6" in capsys.readouterr().out
    assert run_cli(["logs", run_id, "-f", "-n", "1", SITE]) == 0

    first = run_json("accept", "demo", "--step=3")
    assert (first["step"], first["accepted"], first["already"]) == (3, True, False)
    assert list(first) == ["version", "run_id", "step", "accepted", "already", "evidence", "checks"]
    again = run_json("accept", run_id[:10], "--step=3")
    assert (again["accepted"], again["already"], again["checks"]) == (True, True, first["checks"])
    newest = run_json("accept", "@last")
    assert newest["step"] == 6
    assert {check["name"]: check["detail"] for check in newest["checks"]}["dtypes"].endswith("accepted step 3")
    (status,) = run_json("status")["runs"]
    assert status["accepted_step"] == 6

    assert not list((project / "work" / "snapshots").rglob("__pycache__"))
    record = run_json("show", run_id)
    assert record["snapshot"]["sha256"] in script
    assert run_cli(["show", run_id, "--script=1", SITE]) == 0
    assert capsys.readouterr().out == script
    assert run_cli(["show", str(run), "--path"]) == 0
    assert capsys.readouterr().out == f"{run}\n"
    assert run_cli(["show", run_id, "--explain=chain.links", SITE]) == 0
    assert capsys.readouterr().out == "chain.links = 2  (experiments/demo.yaml:9)\n"


def test_what_is_not_accepted_says_the_first_failing_check(
    project: Path, run_json: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli([SPEC, SITE, "--yes", "--wait", "--set=config.fault.bfloat16_from=6"]) == 0
    run = Path(run_json("status")["runs"][0]["run_dir"])
    assert run_json("accept", "@last", "--step=3")["accepted"]
    refused = run_json("accept", "@last", code=8)
    assert [check["name"] for check in refused["checks"] if not check["passed"]] == ["dtypes"]
    (run / "checkpoints" / "step=00000006" / "left.tmp").touch()
    assert run_cli(["accept", "@last", SITE]) == 8
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("launch: error: step 6 of demo-")
    assert "no_temporary: temporary: left.tmp" in error
    assert [path.name for path in (run / "accepted").iterdir()] == ["step=00000003.json"]
    assert run_cli(["accept", "@last", "--step=4", SITE]) == 8
    assert "complete are: 3, 6" in capsys.readouterr().err


def test_waiting_for_a_run_that_ends_early_exits_with_10(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([SPEC, SITE, "--yes", "--wait", "--set=config.fault.crash_at=2", "--set=chain.links=1"]) == 10
    error = capsys.readouterr().err.splitlines()[-1]
    assert "ended at step 2 of 6: link 1 crashed" in error


def test_the_same_source_is_snapshotted_once_and_an_edit_again(project: Path, run_json: Json) -> None:
    assert run_json(SPEC, "--yes")["snapshot"]["new"]
    assert not run_json(SPEC, "--yes")["snapshot"]["new"]
    (project / "fake_trainer" / "__init__.py").write_text("edited = True\n")
    assert run_json(SPEC, "--yes")["snapshot"]["new"]
    assert len(list((project / "work" / "snapshots").iterdir())) == 2
    wait_for(lambda: all(run["over"] for run in run_json("status")["runs"]))


def test_cancel_ends_the_whole_chain_after_a_save(
    project: Path, run_json: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    launched = run_json(SPEC, "--yes", "--set=config.max_steps=100000", "--set=chain.walltime=00:10:00")
    run_id = launched["run_id"]
    wait_for(lambda: (run_json("status", run_id)["runs"][0]["step"] or 0) > 3)
    assert run_cli(["cancel", run_id, SITE]) == 2  # nobody to ask
    assert run_cli(["cancel", run_id, SITE, "--yes"]) == 0
    assert "nothing left in the queue" in capsys.readouterr().out
    (status,) = run_json("status", run_id)["runs"]
    assert status["phase"] == "stopped"
    assert status["checkpoint_step"] == status["step"]
    assert (Path(status["run_dir"]) / "STOP").exists()
    assert run_cli(["cancel", run_id, SITE, "--yes"]) == 0
    assert "nothing to cancel" in capsys.readouterr().err


def test_ctrl_c_leaves_the_jobs_alone_and_says_what_to_do(project: Path, run_json: Json) -> None:
    command = [sys.executable, "-m", "launcher", SPEC, SITE, "--yes", "--wait", "--set=config.max_steps=100000"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    waiting = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: any((run["step"] or 0) > 3 for run in run_json("status")["runs"]))
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=30)
    finally:
        waiting.kill()
    assert waiting.returncode == 130
    (status,) = run_json("status")["runs"]
    assert f"launch cancel {status['run_id']}" in errors
    step = status["step"]
    wait_for(lambda: run_json("status")["runs"][0]["step"] > step)
    assert run_cli(["cancel", "@last", SITE, "--yes", "--now"]) == 0


def test_reading_does_not_write(project: Path, run_json: Json) -> None:
    run_json("status")
    assert not (project / "work" / "launcher.db").exists()
    store = Store.open(project / "work", read_only=True)
    assert store.runs() == []


ANY_PROGRAM = """\
import json, os, pathlib, sys
run = pathlib.Path(os.environ["LAUNCH_RUN_DIR"])
step = int(os.environ["LAUNCH_TARGET_STEP"])
assert sys.argv[1] == f"--config={run}/resolved.yaml" and pathlib.Path(sys.argv[1][9:]).read_text() == "width: 3\\n"
folder = run / "checkpoints" / f"step={step:08d}"
folder.mkdir()
(folder / "weights").write_bytes(b"1234")
manifest = {"version": 1, "step": step, "created": 0.0, "files": {"weights": 4}}
manifest["tensors"] = {"w": {"dtype": "float32", "shape": [1]}}
(folder / "manifest.json").write_text(json.dumps(manifest))
line = {"step": step, "link": 1, "time": 1.0, "loss": 0.5, "grad_norm": 0.1, "step_seconds": 1.0, "skipped": False}
(run / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
"""


def test_any_program_that_keeps_the_contract_can_be_launched(project: Path, run_json: Json) -> None:
    (project / "program.py").write_text(ANY_PROGRAM)
    (project / "experiments" / "any.yaml").write_text(
        "name: any\nadapter: command\ntarget_step: 5\nconfig: {width: 3}\nchain: {walltime: '00:01:00'}\n"
        "command: ['{python}', program.py, '--config={config}']\n"
    )
    assert run_cli(["experiments/any.yaml", SITE, "--yes", "--wait"]) == 0
    assert run_json("accept", "any")["step"] == 5


def test_evidence_without_its_row_gets_one_and_damaged_evidence_is_made_anew(project: Path, run_json: Json) -> None:
    assert run_cli([SPEC, SITE, "--yes", "--wait"]) == 0
    first = run_json("accept", "@last")
    evidence = Path(first["evidence"])
    with Store.open(project / "work").writing() as db:  # as after a kill between the evidence and its row
        db.execute("delete from acceptances")
    assert run_json("accept", "@last")["already"]
    (row,) = Store.open(project / "work", read_only=True).acceptances(first["run_id"])
    assert (row.step, row.evidence, row.sha256) == (6, evidence, hashlib.sha256(evidence.read_bytes()).hexdigest())
    evidence.write_text("{")
    again = run_json("accept", "@last")
    assert (again["accepted"], again["already"]) == (True, False)
    assert json.loads(evidence.read_text())["checks"] == again["checks"]


def test_an_accepted_checkpoint_that_changed_since_is_not_called_accepted(
    project: Path, run_json: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli([SPEC, SITE, "--yes", "--wait"]) == 0
    run_json("accept", "@last")
    manifest = next((project / "work" / "runs").glob("*/checkpoints/step=00000006/manifest.json"))
    manifest.write_text(manifest.read_text() + " ")
    for words in ("its manifest is not the one that was accepted", "no manifest.json in"):
        capsys.readouterr()
        assert run_cli(["accept", "@last", "--step=6", SITE]) == 8
        assert f"was accepted and has changed since: {words}" in capsys.readouterr().err
        manifest.unlink(missing_ok=True)


def test_dtypes_are_compared_with_the_newest_accepted_step_that_is_still_there(project: Path, run_json: Json) -> None:
    changes = ("--set=config.max_steps=9", "--set=config.fault.bfloat16_from=9")
    assert run_cli([SPEC, SITE, "--yes", "--wait", *changes]) == 0
    assert run_json("accept", "@last", "--step=3")["accepted"]
    assert run_json("accept", "@last", "--step=6")["accepted"]
    run = Path(run_json("status")["runs"][0]["run_dir"])
    shutil.rmtree(run / "checkpoints" / "step=00000006")
    refused = run_json("accept", "@last", code=8)
    (failed,) = [check for check in refused["checks"] if not check["passed"]]
    assert (failed["name"], failed["detail"].split(":")[0]) == ("dtypes", "against accepted step 3")


@pytest.mark.parametrize("work_root", ["/dev/null/x", "/proc/nowhere"])
def test_a_work_root_that_cannot_be_written_is_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], work_root: str
) -> None:
    profile = project / "site_profiles" / "here.yaml"
    profile.write_text(f"{profile.read_text()}work_root: {work_root}\n")
    assert run_cli([SPEC, SITE, "--yes"]) == 4
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("launch: error: the snapshot of the source could not be made")
    assert work_root in error


def test_a_live_run_of_the_same_name_is_shown_loudly_before_the_question(
    project: Path, run_json: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = run_json(SPEC, "--yes", "--set=config.max_steps=100000", "--set=chain.walltime=00:10:00")["run_id"]
    loud = f"launch: A RUN OF THIS NAME IS LIVE: {run_id}, "
    for arguments, code in (([SPEC], 2), ([SPEC, "--dry-run"], 0), ([SPEC, "--json"], 2)):
        assert run_cli([*arguments, SITE]) == code
        captured = capsys.readouterr()
        (line,) = [line for line in captured.err.splitlines() if line.startswith(loud)]
        assert f"by {getpass.getuser()} on {socket.gethostname()}" in line
        assert line.endswith(f"launch cancel {run_id}")
        assert "LIVE" not in captured.out
    assert run_cli([SPEC, SITE, "--set=name=other"]) == 2
    assert "LIVE" not in capsys.readouterr().err
    assert run_cli(["cancel", run_id, SITE, "--yes", "--now"]) == 0
    capsys.readouterr()
    assert run_cli([SPEC, SITE]) == 2
    assert "LIVE" not in capsys.readouterr().err
    assert len(list((project / "work" / "runs").iterdir())) == 1


def test_ctrl_c_in_the_middle_of_a_submission_says_what_of_it_may_go_on(
    project: Path, run_json: Json, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.scheduler.local.LocalScheduler.start", interrupted)
    assert run_cli([SPEC, SITE, "--yes"]) == 130
    error = capsys.readouterr().err
    (status,) = run_json("status")["runs"]
    assert f"launch cancel {status['run_id']} ends them" in error


def test_a_secret_of_the_callers_shell_ends_in_no_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", "hunter2-hunter2")
    assert run_cli([SPEC, SITE, "--yes", "--wait"]) == 0
    files = [path for path in (project / "work").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
