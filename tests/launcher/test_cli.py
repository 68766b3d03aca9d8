"""The command line: what it refuses and how, what it must not import, and that a dry run touches nothing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from launcher.cli.main import cli, run_cli

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "lhotse", "submitit", "sqlite_utils", "rich", "omegaconf", "yaml")


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom launcher.cli.main import run_cli\ncode = run_cli(['--help'])\n"
        f"print('LOADED', code, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED 0 []"


def test_the_launcher_imports_nothing_of_the_trainer() -> None:
    for path in (REPOSITORY / "launcher").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in ("torch", "transformers", "lhotse", "dflash_train"), path


def test_verbs_and_options_are_these() -> None:
    found = {
        name: sorted(option for parameter in verb.params for option in parameter.opts if option.startswith("--"))
        for name, verb in cli.commands.items()
    }
    place = ["--site", "--work-root"]
    assert found == {
        "run": ["--dry-run", "--json", "--set", "--site", "--wait", "--yes"],
        "status": sorted(["--exit-status", "--json", *place]),
        "logs": sorted(["--follow", "--json", "--lines", "--link", *place]),
        "show": sorted(["--config", "--diff", "--explain", "--json", "--path", "--script", "--set", "--spec", *place]),
        "accept": sorted(["--json", "--step", *place]),
        "cancel": sorted(["--now", "--yes", *place]),
    }


@pytest.mark.parametrize("verb", [cli, *cli.commands.values()], ids=lambda verb: verb.name)
def test_every_verb_and_option_has_help(verb: click.Command) -> None:
    assert verb.help
    for parameter in verb.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts


def test_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    import launcher.errors as errors

    assert run_cli(["--help"]) == 0
    out = capsys.readouterr().out
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.LauncherError):
            assert f" {error.exit_code}  " in out


SPEC, SITE = "experiments/demo.yaml", "--site=here"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["statu"], 2, "did you mean `status`?"),
        (["run"], 2, "Missing argument"),
        (["status", "--nope"], 2, "No such option '--nope'"),
        (["gone.yaml", SITE], 3, "gone.yaml: no such file"),
        ([SPEC, "--site=nowhere"], 2, "no such site profile"),
        ([SPEC, SITE], 2, "say --yes"),
        ([SPEC, SITE, "--wait", "--json"], 2, "choose one"),
        ([SPEC, SITE, "--yes", "--set=chain.link=1"], 3, "did you mean `chain.links`?"),
        ([SPEC, SITE, "--yes", "--set=chain.walltime=05:00:00"], 3, "longer than site `here` allows"),
        ([SPEC, SITE, "--yes", "--set=config.optimizer.lrr=1"], 3, "did you mean `config.optimizer.lr`?"),
        ([SPEC, SITE, "--yes", "--set=module=no_such_trainer"], 4, "No module named no_such_trainer"),
        (["show", SPEC, SITE, "--explain=lr"], 3, "did you mean `config.optimizer.lr`?"),
        (["show", SPEC, SITE, "--path"], 2, "not launched yet"),
        (["status", "x", SITE], 2, "no runs are known"),
        (["cancel", "x", SITE], 2, "no runs are known"),
        (["accept", "x", SITE], 2, "no runs are known"),
        (["logs", "x", SITE], 2, "no runs are known"),
        (["show", "x", SITE], 2, "no runs are known"),
    ],
)
def test_bad_input_is_one_line_and_its_code_and_leaves_nothing(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert run_cli(arguments) == code
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("launch: error: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert not (project / "work").exists()


def test_debug_shows_the_traceback_wherever_it_stands(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "gone.yaml", SITE], ["gone.yaml", SITE, "--debug"]):
        assert run_cli(arguments) == 3
        assert "Traceback" in capsys.readouterr().err


def test_a_bug_of_ours_is_one_line_and_code_1(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("launcher.spec.load_spec", broken)
    assert run_cli([SPEC, SITE, "--dry-run"]) == 1
    assert capsys.readouterr().err == "launch: error: internal error: ZeroDivisionError: oops (--debug shows where)\n"


def test_without_slurm_the_default_is_this_machine_with_a_loud_line(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert run_cli([SPEC, "--dry-run"]) == 0
    assert "NO SITE CHOSEN" in capsys.readouterr().err
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/sbatch")
    assert run_cli([SPEC, "--dry-run"]) == 2
    assert "this machine has Slurm" in capsys.readouterr().err


def slurm_site(project: Path) -> str:
    text = (project / "site_profiles" / "here.yaml").read_text()
    (project / "site_profiles" / "cluster.yaml").write_text(
        text.replace("backend: local", "backend: slurm") + "slurm: {partition: long, exclude: [n1, n2]}\n"
    )
    return "--site=cluster"


def test_a_dry_run_writes_nothing_and_calls_no_slurm_command(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "srun", "sinfo"):
        (bin_folder / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/called-{name}\nexit 1\n")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=":")
    site = slurm_site(project)
    before = sorted((path, path.lstat().st_mtime_ns) for path in project.rglob("*"))
    assert run_cli([SPEC, site, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("#!/bin/bash\n")
    assert "#SBATCH --partition=long" in captured.out
    assert "sbatch" in captured.err
    assert "afterany:" in captured.err
    assert "plan" in captured.err
    assert sorted((path, path.lstat().st_mtime_ns) for path in project.rglob("*")) == before
    assert not list(tmp_path.glob("called-*"))


def test_a_dry_run_as_json_has_every_script_and_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = slurm_site(project)
    assert run_cli([SPEC, site, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert list(plan) == [
        *("version", "dry_run", "run_id", "token", "name", "run_dir", "site", "backend", "chain", "resources"),
        *("gpu_hours", "target_step", "command", "config_sha256", "snapshot", "facts", "smoke", "scripts", "submit"),
    ]
    assert (plan["run_id"], plan["token"], plan["dry_run"]) == ("DRYRUN", "DRYRUN", True)
    assert len(plan["scripts"]) == len(plan["submit"]) == 2
    assert run_cli([SPEC, site, "--dry-run"]) == 0
    assert capsys.readouterr().out == plan["scripts"][0]


def test_options_may_come_before_the_spec(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["--dry-run", SITE, SPEC]) == 0
    first = capsys.readouterr().out
    assert run_cli(["run", SPEC, SITE, "--dry-run"]) == 0
    assert capsys.readouterr().out == first


def test_a_spec_is_shown_before_it_is_launched(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["show", SPEC, SITE, "--explain", "chain.links"]) == 0
    assert capsys.readouterr().out == "chain.links = 2  (experiments/demo.yaml:9)\n"
    assert run_cli(["show", SPEC, SITE, "--set=chain.links=4", "--explain", "chain.links", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"] == {"chain.links": {"value": 4, "source": "--set"}}
    assert run_cli(["show", SPEC, SITE, "--config"]) == 0
    assert "max_steps: 6\n" in capsys.readouterr().out
    assert not (project / "work").exists()


@pytest.mark.parametrize("part", ["--spec", "--config", "--script=2"])
def test_json_is_one_object_whatever_is_shown(project: Path, capsys: pytest.CaptureFixture[str], part: str) -> None:
    assert run_cli(["show", SPEC, SITE, part]) == 0
    plain = capsys.readouterr().out
    assert run_cli(["show", SPEC, SITE, part, "--json"]) == 0
    name = part.removeprefix("--").partition("=")[0]
    assert json.loads(capsys.readouterr().out) == {"version": 1, name: plain}


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [
        (">&-", 0, ""),
        ("<&-", 0, ""),
        ("2>&-", 0, ""),
        ("| head -0; exit ${PIPESTATUS[0]}", 141, ""),
        ("--no-such 2>&1 >&- <&-", 2, "No such option"),
    ],
)
def test_closed_streams_are_no_bug(project: Path, redirection: str, code: int, words: str) -> None:
    command = f"{sys.executable} -m launcher status --json {SITE} {redirection}"
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "error: internal" not in done.stderr
    assert words in done.stdout + done.stderr


def test_without_a_terminal_to_ask_on_a_closed_stdin_is_a_usage_error(project: Path) -> None:
    command = f"{sys.executable} -m launcher {SPEC} {SITE} <&-"
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "say --yes" in done.stderr


def test_no_runs_is_no_error(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["status", SITE]) == 0
    assert "no runs" in capsys.readouterr().err
    assert run_cli(["status", SITE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "runs": []}
    assert not (project / "work").exists()
