"""A small project of its own for each test: a git work tree with the fake trainer, a spec and a local site."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.small_project import FAKE_TRAINER, SITE, SPEC, git


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The top of a fresh project, which is the working directory too."""
    top = tmp_path / "project"
    (top / "experiments").mkdir(parents=True)
    (top / "site_profiles").mkdir()
    shutil.copytree(FAKE_TRAINER, top / "fake_trainer", ignore=shutil.ignore_patterns("__pycache__"))
    (top / "experiments" / "demo.yaml").write_text(SPEC)
    (top / "site_profiles" / "here.yaml").write_text(SITE)
    (top / ".gitignore").write_text("work/\n__pycache__/\n")
    git(top, "init", "--quiet", "--initial-branch=main")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message=start")
    monkeypatch.chdir(top)
    monkeypatch.delenv("LAUNCH_SITE", raising=False)
    return top


@pytest.fixture
def write_spec(project: Path) -> Callable[[str], Path]:
    """Write experiments/demo.yaml and return its path."""

    def write(text: str, name: str = "demo.yaml") -> Path:
        path = project / "experiments" / name
        path.write_text(text)
        return path

    return write
