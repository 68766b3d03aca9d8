"""`--wait`: follows a run across its links until the chain has ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.cli.common import Runs, console, duration, note
from launcher.errors import AlarmPresent
from launcher.records import Backend

if TYPE_CHECKING:
    from launcher.status import RunStatus

LINE_SECONDS = 30  # without a terminal: a line at least this often


def follow(run_id: str, work_root: Path) -> None:
    """Show the run's progress until no link is left.

    Raises:
        AlarmPresent: the chain ended short of the target step.
        click.Abort: Ctrl-C; the jobs go on.
    """
    from launcher.status import RunPhase
    from launcher.store import Store

    runs = Runs(Store.open(work_root), writable=True)
    try:
        status = _with_bar(runs, run_id) if sys.stderr.isatty() else _with_lines(runs, run_id)
    except KeyboardInterrupt:
        note(f"{run_id} goes on. Watch it: launch status {run_id} · end it: launch cancel {run_id}")
        raise click.Abort from None
    finally:
        runs.store.close()
    click.echo(f"{run_id}: {status.phase.value} at step {status.step or 0} of {status.target_step}")
    if status.phase is not RunPhase.FINISHED:
        ends = "; ".join(
            f"link {link.number} {link.outcome.value if link.outcome else link.state.value}"
            + (f" ({link.detail})" if link.detail else "")
            for link in status.links
        )
        raise AlarmPresent(
            f"{run_id} ended at step {status.step or 0} of {status.target_step}: {ends}: launch logs {run_id}"
        )


def _look(runs: Runs, run_id: str) -> RunStatus:
    from launcher.status import read_status

    run = runs.store.find_run(run_id)
    runs.refresh(run)
    return read_status(runs.store.find_run(run_id), runs.store, time.time())


def _until_over(runs: Runs, run_id: str, show: Callable[[RunStatus], None]) -> RunStatus:
    """Look, show, sleep, until no link is left. The store holds to the site's poll_seconds; files are cheap."""
    told: set[str] = set()
    pause = 0.5 if runs.store.find_run(run_id).backend is Backend.LOCAL else 5.0
    while True:
        status = _look(runs, run_id)
        show(status)
        for alarm in status.alarms:
            if alarm not in told:
                told.add(alarm)
                note(f"alarm: {alarm}")
        if status.over:
            return status
        time.sleep(pause)


def _where(status: RunStatus) -> str:
    link = f"link {status.link} of {status.run.links}" if status.link else f"{status.run.links} links"
    loss = "" if status.loss is None else f" · loss {status.loss:.4g}"
    saved = "" if status.checkpoint_step is None else f" · saved {status.checkpoint_step}"
    return f"{status.phase.value} · {link}{loss}{saved}"


def _with_bar(runs: Runs, run_id: str) -> RunStatus:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=24), TextColumn("{task.fields[where]}"))
    with Progress(*columns, console=console(stderr=True)) as progress:
        total = runs.store.find_run(run_id).target_step
        task = progress.add_task("", total=total, where="")

        def show(status: RunStatus) -> None:
            eta = "" if status.eta_seconds is None else f" · ETA {duration(status.eta_seconds)}"
            progress.update(task, completed=status.step or 0, where=_where(status) + eta)

        return _until_over(runs, run_id, show)


def _with_lines(runs: Runs, run_id: str) -> RunStatus:
    last = ("", 0.0)

    def show(status: RunStatus) -> None:
        nonlocal last
        key = f"{status.phase} {status.link} {status.checkpoint_step}"
        now = time.monotonic()
        if key != last[0] or now - last[1] >= LINE_SECONDS:
            note(f"step {status.step or 0} of {status.target_step} · {_where(status)}")
            last = (key, now)

    return _until_over(runs, run_id, show)
