"""Questions to git, each a subprocess with a time-out."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import PreflightError

TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Revision:
    """State of a work tree."""

    commit: str  # full hash; "unborn" before the first commit
    diff: str  # `git diff HEAD`: tracked changes; untracked files are in the snapshot
    submodules: tuple[tuple[str, str], ...]  # path and checked-out commit


def git(folder: Path, *arguments: str) -> bytes:
    """The output of a git command. PreflightError when it fails, with git's own words."""
    # A caller's GIT_DIR or GIT_INDEX_FILE (inside a hook, say) would answer for another work tree.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=TIMEOUT_SECONDS, check=False)
    except FileNotFoundError:
        raise PreflightError("git is not on PATH: the source of a run is taken from a git work tree") from None
    except subprocess.TimeoutExpired:
        raise PreflightError(
            f"`git {' '.join(arguments)}` did not end within {TIMEOUT_SECONDS} s in {folder}"
        ) from None
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise PreflightError(f"`git {' '.join(arguments)}` failed in {folder}: {words[0]}")
    return done.stdout


def work_tree_top(folder: Path) -> Path:
    """Top of the work tree that `folder` lies in. PreflightError outside of one."""
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n"))
    except PreflightError as error:
        if "not a git repository" not in str(error):
            raise
        raise PreflightError(
            f"{folder} is not in a git work tree, and the source of a run is what git lists: "
            "run `git init` at the top of your project"
        ) from None


def commit_of(folder: Path) -> str:
    """The checked-out commit, or "unborn"."""
    try:
        return git(folder, "rev-parse", "--verify", "--quiet", "HEAD").decode().strip()
    except PreflightError:
        return "unborn"


def revision(top: Path, submodules: Sequence[str]) -> Revision:
    """Commit, diff and submodule commits of a work tree."""
    commit = commit_of(top)
    diff = "" if commit == "unborn" else git(top, "diff", "HEAD", "--binary").decode(errors="surrogateescape")
    return Revision(commit, diff, tuple((path, commit_of(top / path)) for path in submodules))
