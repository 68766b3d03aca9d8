"""`launch accept`: look twice at a checkpoint, judge it, write the evidence, then the row."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from launcher.cli.common import console, find_run, json_option, note, open_runs, place_options, print_json

if TYPE_CHECKING:
    from launcher.accept import Check, Evidence, Listing, Observation
    from launcher.store import RunRow


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step; else the newest complete one.")
@place_options
@json_option
def accept(run: str, step: int | None, site: str | None, work_root: str | None, as_json: bool) -> None:
    """Check a checkpoint of RUN and record it as accepted.

    Two listings some time apart (the site's accept_interval_seconds) must be equal, without temporary or empty files
    and with every file, size, dtype and shape of the manifest; dtypes must be those of the checkpoint accepted before;
    and a step with finite loss and gradient norm must follow, or the run end there. Exits with 8 at
    the first check that fails.
    """
    from launcher.accept import complete_steps, judge, read_evidence, read_manifest, write_evidence
    from launcher.errors import NotAccepted, UsageError

    opened = open_runs(site, work_root, run)
    row = find_run(opened.store, run)
    if not opened.writable:
        raise UsageError(
            f"{opened.store.path} cannot be written: only its owner can accept checkpoints of {row.run_id}"
        )
    opened.refresh(row)
    complete = complete_steps(row.paths)
    if step is None:
        if not complete:
            raise NotAccepted(
                f"{row.run_id} has no complete checkpoint yet (no manifest.json in {row.paths.checkpoints})"
            )
        step = complete[-1]
    elif not row.paths.checkpoint(step).is_dir():
        known = ", ".join(str(number) for number in complete) or "none"
        raise NotAccepted(f"{row.run_id} has no checkpoint of step {step}; complete are: {known}")
    recorded = read_evidence(row.paths.evidence(step))
    if recorded is not None:
        manifest = read_manifest(row.paths.checkpoint(step))
        if isinstance(manifest, str) or manifest.sha256 != recorded.manifest_sha256:
            why = manifest if isinstance(manifest, str) else "its manifest is not the one that was accepted"
            raise NotAccepted(f"step {step} of {row.run_id} was accepted and has changed since: {why}")
        if step not in [accepted.step for accepted in opened.store.acceptances(row.run_id)]:
            # The launcher was killed between the evidence and its row.
            path = row.paths.evidence(step)
            opened.store.add_acceptance(row.run_id, step, path, recorded.sha256, recorded.accepted_at)
        _report_known(row, step, recorded, as_json)
        return
    seen = _observe(row, step)
    checks = judge(seen)
    failed = next((check for check in checks if not check.passed), None)
    evidence = None
    if failed is None:
        now = time.time()
        evidence, sha256 = write_evidence(row.paths, row.run_id, seen, checks, now)
        opened.store.add_acceptance(row.run_id, step, evidence, sha256, now)
    if as_json:
        print_json(
            {
                "version": 1,
                "run_id": row.run_id,
                "step": step,
                "accepted": failed is None,
                "already": False,
                "evidence": evidence,
                "checks": [vars(check) for check in checks],
            }
        )
    else:
        _print_checks(checks)
    if failed:
        others = [number for number in complete if number != step]
        hint = f" (other complete steps: {', '.join(map(str, others[-5:]))})" if others else ""
        raise NotAccepted(f"step {step} of {row.run_id} is not accepted: {failed.name}: {failed.detail}{hint}")
    if not as_json:
        click.echo(f"accepted step {step} of {row.run_id}: {evidence}")


def _report_known(row: RunRow, step: int, known: Evidence, as_json: bool) -> None:
    evidence = row.paths.evidence(step)
    if as_json:
        print_json(
            {
                "version": 1,
                "run_id": row.run_id,
                "step": step,
                "accepted": True,
                "already": True,
                "evidence": evidence,
                "checks": [vars(check) for check in known.checks],
            }
        )
        return
    click.echo(f"step {step} of {row.run_id} is already accepted: {evidence}")


def _observe(row: RunRow, step: int) -> Observation:
    """Two listings the site's interval apart, the manifests, and the log."""
    from launcher.accept import Observation, accepted_steps, list_files, read_manifest
    from launcher.metrics import read_steps

    folder = row.paths.checkpoint(step)
    interval = _interval(row)
    started = time.monotonic()
    first = list_files(folder)
    _wait(interval, step, first)
    second = list_files(folder)
    apart = time.monotonic() - started
    reference = None
    for number in reversed([number for number in accepted_steps(row.paths) if number < step]):
        found = read_manifest(row.paths.checkpoint(number))
        if not isinstance(found, str):
            reference = found
            break
        note(f"the accepted step {number} cannot be compared with: {found}")
    return Observation(
        step=step,
        target_step=row.target_step,
        first=first,
        second=second,
        interval_seconds=apart,
        manifest=read_manifest(folder),
        reference=reference,
        metrics=read_steps(row.paths.metrics),
    )


def _interval(row: RunRow) -> float:
    """The interval of the site that the run was launched on, from its run.json."""
    import json

    from launcher.errors import PreflightError

    try:
        return float(json.loads(row.paths.run_json.read_text())["site"]["accept_interval_seconds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PreflightError(f"{row.paths.run_json} cannot be read: {type(error).__name__}: {error}") from None


def _wait(seconds: float, step: int, first: Listing) -> None:
    """Let the interval pass, with a bar on a terminal and a line elsewhere."""
    what = f"step {step}: {len(first)} files; looking again in {seconds:.0f} s"
    if not sys.stderr.isatty():
        note(what)
        time.sleep(seconds)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(bar_width=24), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=seconds)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            progress.update(task, completed=seconds - left)
            time.sleep(min(0.2, left))


def _print_checks(checks: tuple[Check, ...]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("seen", overflow="fold")
    for check in checks:
        table.add_row(check.name, "ok" if check.passed else "FAILED", Text(check.detail))
    console().print(table)
