"""`launch status`: where every run stands, or one run with its links."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.common import (
    clock,
    console,
    duration,
    find_run,
    json_option,
    note,
    open_runs,
    place_options,
    print_json,
)

if TYPE_CHECKING:
    from launcher.status import RunStatus
    from launcher.store import LinkRow


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@place_options
@click.option("--exit-status", is_flag=True, help="Exit with 10 when a run shown has an alarm.")
@json_option
def status(runs: tuple[str, ...], site: str | None, work_root: str | None, exit_status: bool, as_json: bool) -> None:
    """Show where runs stand.

    All runs of the work root, or the RUNs named with their links. Steps and losses come from the log of the run's first
    process, not from the queue; they are as old as the last column says.
    """
    from launcher.errors import AlarmPresent
    from launcher.status import read_status

    opened = open_runs(site, work_root, runs[0] if runs else None)
    store = opened.store
    chosen = [find_run(store, handle) for handle in runs] if runs else store.runs()
    if runs:
        for run in chosen:
            opened.refresh(run)
    else:
        opened.refresh()
    now = time.time()
    found = [read_status(find_run(store, run.run_id), store, now) for run in chosen]
    if as_json:
        print_json({"version": 1, "runs": [status_json(item) for item in found]})
    elif not found:
        note(f"no runs in {store.path.parent}")
    else:
        _print_table(found)
        if runs:
            for item in found:
                _print_links(item)
    alarms = [f"{item.run.run_id}: {alarm}" for item in found for alarm in item.alarms]
    if exit_status and alarms:
        raise AlarmPresent("\n".join(alarms))
    for line in [] if as_json else alarms:
        note(f"alarm: {line}")


def status_json(item: RunStatus) -> dict[str, Any]:
    """One run's status with stable keys; times in unix seconds."""
    return {
        "run_id": item.run.run_id,
        "name": item.run.name,
        "run_dir": str(item.run.run_dir),
        "site": item.run.site_name,
        "backend": item.run.backend.value,
        "created": item.run.created,
        "phase": item.phase.value,
        "over": item.over,
        "step": item.step,
        "step_age_seconds": item.step_age_seconds,
        "target_step": item.target_step,
        "steps_per_second": item.steps_per_second,
        "eta_seconds": item.eta_seconds,
        "loss": item.loss,
        "link": item.link,
        "planned_links": item.run.links,
        "links": [link_json(link) for link in item.links],
        "accepted_step": item.accepted_step,
        "checkpoint_step": item.checkpoint_step,
        "queue_age_seconds": item.queue_age_seconds,
        "alarms": list(item.alarms),
    }


def link_json(link: LinkRow) -> dict[str, Any]:
    """One link with stable keys."""
    return {
        "link": link.number,
        "job_id": link.job_id,
        "state": link.state.value,
        "outcome": link.outcome.value if link.outcome else None,
        "submitted": link.submitted,
        "detail": link.detail,
    }


def _print_table(found: list[RunStatus]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", max_width=30)
    for name in ("step", "rate", "ETA", "loss", "link"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in ("accepted", "saved", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in found:
        table.add_row(
            item.run.run_id,
            f"{item.step or 0}/{item.target_step}",
            _rate(item.steps_per_second),
            duration(item.eta_seconds),
            "-" if item.loss is None else f"{item.loss:.4g}",
            f"{item.link or 0}/{item.run.links}",
            item.phase.value,
            _number(item.accepted_step),
            _number(item.checkpoint_step),
            duration(item.step_age_seconds),
        )
    console().print(table)


def _print_links(item: RunStatus) -> None:
    from rich import box
    from rich.table import Table

    age = "never" if item.queue_age_seconds is None else f"{duration(item.queue_age_seconds)} ago"
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=f"links of {item.run.run_id} (queue asked {age})",
        title_justify="left",
    )
    table.add_column("link", justify="right")
    for name in ("job", "state", "outcome", "submitted"):
        table.add_column(name, no_wrap=True)
    table.add_column("detail", overflow="fold")
    for link in item.links:
        outcome = link.outcome.value if link.outcome else "-"
        table.add_row(
            str(link.number), link.job_id or "-", link.state.value, outcome, clock(link.submitted), link.detail
        )
    console().print(table)


def _rate(steps_per_second: float | None) -> str:
    if not steps_per_second:
        return "-"
    return f"{steps_per_second:.1f}/s" if steps_per_second >= 1 else f"{1 / steps_per_second:.1f}s"


def _number(step: int | None) -> str:
    return "-" if step is None else str(step)
