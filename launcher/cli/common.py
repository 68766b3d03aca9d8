"""What the verbs share: options, finding runs, and how things are printed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from launcher.errors import PreflightError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from launcher.records import Site
    from launcher.store import RunRow, Store

Function = TypeVar("Function", bound=Callable[..., Any])
WIDTH = 100  # columns, where the output is no terminal
INTERRUPTED = 130  # as a shell says of a program ended by Ctrl-C


def json_option(function: Function) -> Function:
    """--json of every verb that reads."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")(function)


def place_options(function: Function) -> Function:
    """Where the runs are."""
    function = click.option(
        "--work-root", type=click.Path(file_okay=False), help="Folder of the runs, in place of the site's work_root."
    )(function)
    return site_option(function)


def site_option(function: Function) -> Function:
    """--site of every verb."""
    return click.option(
        "--site",
        metavar="PROFILE",
        help="Site profile, or its name in site_profiles/ (else LAUNCH_SITE, else the local one).",
    )(function)


def note(message: str) -> None:
    """One line for a person, on stderr."""
    click.echo(f"launch: {message}", err=True)


def print_json(content: Mapping[str, Any]) -> None:
    """The one JSON object of a verb, on stdout. What is not a number (nan, inf) becomes null."""
    click.echo(json.dumps(_jsonable(content), indent=1))


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def console(stderr: bool = False) -> Console:
    """A console that fits the terminal and, without one, 100 columns. NO_COLOR is honoured by rich."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def spinner(message: str) -> AbstractContextManager[Any]:
    """A moving line on stderr while something takes its time; nothing without a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    return console(stderr=True).status(message)


def confirm(question: str, yes: bool) -> None:
    """Ask, unless --yes. UsageError where nobody can be asked; the program ends on no, with 130 as after Ctrl-C."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal to ask on: say --yes")
    if not click.confirm(question, err=True):
        note("nothing was done")
        raise click.exceptions.Exit(INTERRUPTED)


@dataclass(frozen=True)
class Runs:
    """The runs of one work root. `writable` is False before the first launch, and in somebody else's work root."""

    store: Store
    writable: bool

    def refresh(self, run: RunRow | None = None, force: bool = False) -> None:
        """Bring the database up to date and say on stderr what a person should know."""
        from launcher.reconcile import reconcile

        if self.writable:
            for line in reconcile(self.store, run, force):
                note(line)


def open_runs(site: str | None, work_root: str | None, handle: str | None = None) -> Runs:
    """The runs of the work root that is meant.

    Raises:
        UsageError: it cannot be told which work root is meant.
    """
    from launcher.store import Store

    root = find_work_root(site, work_root, handle)
    database = root / "launcher.db"
    writable = database.is_file() and os.access(database, os.W_OK)
    return Runs(Store.open(root, read_only=not writable), writable)


def find_work_root(site: str | None, work_root: str | None, handle: str | None = None) -> Path:
    """From a run directory given as handle, --work-root, the site's profile, or work/ of the git top here."""
    if handle and "/" in handle and (Path(handle) / "run.json").is_file():
        return Path(handle).resolve().parents[1]
    if work_root:
        return Path(work_root).resolve()
    from launcher.git import work_tree_top

    try:
        top = work_tree_top(Path.cwd())
    except PreflightError:
        raise UsageError(f"{Path.cwd()} is not in a project (a git work tree): go to it, or say --work-root") from None
    return _site_of(site, top).work_root


def _site_of(site: str | None, top: Path) -> Site:
    from launcher.profile import choose_site, load_profile

    # Reading is harmless wherever it is done, so no site need be chosen here even where sbatch is on PATH.
    return load_profile(choose_site(site, os.environ, top, None), top).site


def find_run(store: Store, handle: str) -> RunRow:
    """The run that a handle names; a run directory is one too."""
    if "/" in handle:
        handle = Path(handle).resolve().name
    return store.find_run(handle)


def duration(seconds: float | None) -> str:
    """A duration in at most six characters: 45s, 12m05s, 3h20m, 2d04h."""
    if seconds is None:
        return "-"
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def clock(when: float | None) -> str:
    """A time as a person reads it: local on a terminal, UTC elsewhere."""
    if when is None:
        return "-"
    if sys.stdout.isatty():
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
