"""Who launched what, from where, with which versions: the part of run.json that no config holds."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.git import Revision, git, revision
from launcher.snapshot import SourceTree

VERSIONS_OF = ("draftyard", "click", "omegaconf", "submitit", "sqlite-utils", "rich")


@dataclass(frozen=True)
class Provenance:
    """Facts of one launch."""

    git_top: Path
    code: Revision
    host: str
    user: str
    argv: tuple[str, ...]
    working_directory: Path
    versions: Mapping[str, str]  # of the launcher's side; the trainer names its own in its facts


def read_provenance(tree: SourceTree, argv: Sequence[str]) -> Provenance:
    """The facts of this launch; reads git and the environment, calls no Slurm command."""
    versions = {"python": platform.python_version(), "git": git(tree.top, "version").decode().split()[-1]}
    for name in VERSIONS_OF:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return Provenance(
        git_top=tree.top,
        code=revision(tree.top, tree.submodules),
        host=socket.gethostname(),
        user=_user(),
        argv=tuple(argv),
        working_directory=Path.cwd(),
        versions=versions,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry in passwd
        return str(os.getuid())
