"""A site profile: which one is meant, read, checked key by key, and turned into a record."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import PreflightError, SpecError, UsageError
from launcher.keys import SiteKeys
from launcher.records import Backend, Site, SlurmOptions
from launcher.schema import convert, problems, walltime_seconds
from launcher.yaml_marks import Document, parse, read_file

BUILTIN_LOCAL = """\
# This machine: links run one after another under a supervisor, with their wall time enforced.
name: local
backend: local
max_walltime: "7-00:00:00"
save_margin_seconds: 5      # a link is told to save this long before its end
lock_stale_seconds: 30
accept_interval_seconds: 3   # between the two listings of acceptance; minutes where files lie on a shared file system
poll_seconds: 1
smoke: none
"""
"""Used where a project has no site_profiles/local.yaml; a test holds the two equal."""

_ENV_NAME = re.compile(r"[A-Za-z_]\w*")
_AT_LEAST = {
    "save_margin_seconds": 1,
    "lock_stale_seconds": 10,
    "accept_interval_seconds": 1,
    "poll_seconds": 1,
}


@dataclass(frozen=True)
class SiteChoice:
    """Which profile is used, and why."""

    path: Path | None  # None: the built-in local profile
    reason: str  # "--site", "LAUNCH_SITE" or "default"


@dataclass(frozen=True)
class Profile:
    """A checked profile with what --explain and run directories need of it."""

    site: Site
    text: str
    document: Document
    choice: SiteChoice


def choose_site(flag: str | None, environ: Mapping[str, str], git_top: Path, sbatch: str | None) -> SiteChoice:
    """The profile that is meant: --site, else LAUNCH_SITE, else the local one; refused where `sbatch` is on PATH.

    Raises:
        UsageError: no such profile, or none chosen on a machine with Slurm.
    """
    if flag == "":
        raise UsageError('--site "": no site named (an unset variable?): say --site PROFILE.yaml')
    for value, reason in ((flag, "--site"), (environ.get("LAUNCH_SITE"), "LAUNCH_SITE")):
        if value:
            return SiteChoice(_find(value, git_top, reason), reason)
    if sbatch:
        raise UsageError(
            f"no site chosen, and this machine has Slurm ({sbatch}): say --site PROFILE.yaml (or set LAUNCH_SITE); "
            "--site site_profiles/local.yaml runs on this machine alone"
        )
    path = git_top / "site_profiles" / "local.yaml"
    return SiteChoice(path if path.is_file() else None, "default")


def default_notice(choice: SiteChoice) -> str:
    """The one loud line for a run whose site nobody chose."""
    where = "site_profiles/local.yaml" if choice.path else "the built-in local site"
    return f"NO SITE CHOSEN (--site, LAUNCH_SITE): RUNNING ON THIS MACHINE, {where}"


def load_profile(choice: SiteChoice, git_top: Path) -> Profile:
    """The profile of a choice. SpecError with file, line and key on anything that is not right."""
    if choice.path is None:
        document, text = parse(BUILTIN_LOCAL, "built-in local site"), BUILTIN_LOCAL
    else:
        document, text = read_file(choice.path, _shown(choice.path))
    found = problems(document, SiteKeys)
    if found:
        raise SpecError("\n".join(found))
    keys: SiteKeys = convert(document, SiteKeys)
    found = _value_problems(keys, document)
    if found:
        raise SpecError("\n".join(found))
    return Profile(_site(keys, git_top), text, document, choice)


def preflight(profile: Profile, sbatch: str | None) -> None:
    """PreflightError where the site's interpreter or Slurm is not here. Not asked of a profile that is only read."""
    site = profile.site
    if not os.access(site.python, os.X_OK):
        mark = profile.document.mark("python") or site.name
        raise PreflightError(f"{mark}: python: {site.python} is not an executable file on this machine")
    if site.backend is Backend.SLURM and not sbatch:
        raise PreflightError(f"site `{site.name}` is a Slurm site, and sbatch is not on PATH: go to its login node")


def _find(value: str, git_top: Path, reason: str) -> Path:
    path = Path(value).expanduser()
    if path.is_file():
        return path
    named = git_top / "site_profiles" / f"{value}.yaml"
    if "/" not in value and named.is_file():
        return named
    known = sorted(p.stem for p in (git_top / "site_profiles").glob("*.yaml"))
    listing = f"; site_profiles/ has {', '.join(known)}" if known else ""
    raise UsageError(f"{reason} {value}: no such site profile{listing}")


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)


def _value_problems(keys: SiteKeys, document: Document) -> list[str]:
    found = []
    source = next((mark.source for mark in document.marks.values()), "the site profile")
    for key, least in _AT_LEAST.items():
        value = getattr(keys, key)
        if value < least:
            found.append(f"{document.mark(key) or source}: {key}: {value}: at least {least}")
    for name in keys.env:
        if not _ENV_NAME.fullmatch(name):
            found.append(f"{document.mark(f'env.{name}')}: env.{name}: not the name of an environment variable")
        elif name.startswith(("LAUNCH_", "SLURM_")) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            found.append(
                f"{document.mark(f'env.{name}')}: env.{name}: set by the launcher or by Slurm, not by a profile"
            )
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", keys.name):
        found.append(f"{document.mark('name') or source}: name: `{keys.name}`: only a-z, 0-9, - and _")
    if keys.backend == "local" and document.mark("slurm"):
        found.append(f"{document.mark('slurm')}: slurm: this profile has `backend: local`: remove the group")
    return found


def _site(keys: SiteKeys, git_top: Path) -> Site:
    slurm = keys.slurm
    return Site(
        name=keys.name,
        backend=keys.backend,
        python=_interpreter(keys.python, git_top),
        work_root=_place(keys.work_root or "work", git_top),
        max_walltime_seconds=walltime_seconds(keys.max_walltime),
        save_margin_seconds=keys.save_margin_seconds,
        lock_stale_seconds=keys.lock_stale_seconds,
        accept_interval_seconds=keys.accept_interval_seconds,
        poll_seconds=keys.poll_seconds,
        smoke=keys.smoke.value,
        setup=tuple(keys.setup),
        env=dict(keys.env),
        slurm=SlurmOptions(
            partition=slurm.partition,
            account=slurm.account,
            qos=slurm.qos,
            constraint=slurm.constraint,
            reservation=slurm.reservation,
            exclude=tuple(slurm.exclude),
            gpu_option=slurm.gpu_option.value,
        ),
    )


def _place(value: str, git_top: Path) -> Path:
    # normpath and not resolve: a link on the way to a shared file system is often the only stable name of it.
    return Path(os.path.normpath(git_top / Path(value).expanduser()))


def _interpreter(value: str, git_top: Path) -> str:
    if "/" in value:
        return str(_place(value, git_top))  # links kept: a venv is found through the place of its python
    return os.path.abspath(shutil.which(value) or value) if value else sys.executable
