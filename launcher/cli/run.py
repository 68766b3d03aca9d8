"""`launch run`: check everything, show the plan, ask, then submit the chain."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.common import (
    confirm,
    console,
    duration,
    json_option,
    note,
    open_runs,
    print_json,
    site_option,
    spinner,
)

if TYPE_CHECKING:
    from launcher.plan import Launch
    from launcher.records import RunPlan
    from launcher.store import RunRow


@click.command()
@click.argument("spec", type=click.Path(dir_okay=False))
@site_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, as in chain.links=2.")
@click.option(
    "--dry-run", is_flag=True, help="Print the first link's exact script; write nothing, call no Slurm command."
)
@click.option("--wait", is_flag=True, help="Follow the run until its chain has ended. Ctrl-C leaves the jobs alone.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before launching.")
@json_option
def run(
    spec: str, site: str | None, overrides: tuple[str, ...], dry_run: bool, wait: bool, yes: bool, as_json: bool
) -> None:
    """Launch the experiment in SPEC (the same as `launch SPEC`).

    Every key of spec and site profile is checked, and the trainer is asked about its config, before anything is
    written. Then the plan is shown, the source is snapshotted and the chain of links is submitted. With --dry-run the
    script goes to stdout and everything else to stderr.
    """
    from launcher.plan import DRYRUN_IDENTITY, new_identity

    if wait and as_json:
        raise click.UsageError("--wait shows a bar, --json prints one object: choose one")
    launch = prepare(spec, site, overrides, None if dry_run else new_identity, DRYRUN_IDENTITY)
    if dry_run:
        _print_dry_run(launch, as_json)
        return
    if not as_json:
        show_plan(launch)
    note_live_runs(launch, refresh=True)
    confirm(f"Launch {launch.plan.chain.links} links of {launch.plan.run_id}?", yes)
    _carry_out(launch, as_json)
    if wait:
        from launcher.cli.follow import follow

        follow(launch.plan.run_id, launch.plan.site.work_root)


def prepare(
    spec_path: str, site: str | None, overrides: tuple[str, ...], new_identity: Any, dry_identity: Any
) -> Launch:
    """Everything before the question: all checks, the trainer's answer, the hash of the source. Writes nothing."""
    import os
    from pathlib import Path

    from launcher.errors import SpecError
    from launcher.git import work_tree_top
    from launcher.plan import check_config, make_launch
    from launcher.profile import choose_site, default_notice, load_profile, preflight
    from launcher.snapshot import read_source
    from launcher.spec import check_against_site, load_spec

    path = Path(spec_path)
    if not path.is_file():
        raise SpecError(f"{spec_path}: no such file")
    spec = load_spec(path, overrides)
    git_top = work_tree_top(path.resolve().parent)
    choice = choose_site(site, os.environ, git_top, shutil.which("sbatch"))
    if choice.reason == "default":
        note(default_notice(choice))
    profile = load_profile(choice, git_top)
    check_against_site(spec, profile.site)
    preflight(profile, shutil.which("sbatch") or (None if new_identity else "not needed"))
    with spinner("asking the trainer about its config"):
        checked = check_config(spec, profile, git_top)
    with spinner("reading the source"):
        tree = read_source(git_top, profile.site.work_root)
    identity = new_identity(spec.name, time.time()) if new_identity else dry_identity
    return make_launch(spec, profile, checked, tree, identity)


def show_plan(launch: Launch) -> None:
    """The plan as a table on stderr."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from launcher.cli.plan_rows import plan_rows

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False, title="plan", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in plan_rows(launch):
        table.add_row(name, Text(value))
    console(stderr=True).print(table)


def note_live_runs(launch: Launch, refresh: bool) -> None:
    """One loud line for each run of this name that is not over: the same experiment is easily launched twice.

    `refresh`: bring what is known of them up to date first (a dry run asks no scheduler and writes nothing).
    """
    from launcher.judge import is_open
    from launcher.status import read_status

    runs = open_runs(None, str(launch.plan.site.work_root))
    try:
        for run in runs.store.runs():
            if run.name != launch.plan.name or not any(is_open(link) for link in runs.store.links(run.run_id)):
                continue
            if refresh:
                runs.refresh(run)
            now = time.time()
            status = read_status(run, runs.store, now)
            if not status.over:
                note(
                    f"A RUN OF THIS NAME IS LIVE: {run.run_id}, {status.phase} at step {status.step or 0} of "
                    f"{status.target_step}, launched {duration(now - run.created)} ago {_by_whom(run)}; this launch "
                    f"is another run beside it; to end that one: launch cancel {run.run_id}"
                )
    finally:
        runs.store.close()


def _by_whom(run: RunRow) -> str:
    """Who launched a run, from its run.json."""
    import json

    try:
        record = json.loads(run.paths.run_json.read_text())
        return f"by {record['user']} on {record['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"(by whom cannot be read in {run.paths.run_json})"


def submit_lines(plan: RunPlan) -> list[list[str]]:
    """The sbatch command of every link; the id of the link before is only known then."""
    from launcher.render import submit_command

    return [
        list(submit_command(plan, number, f"<job of link {number - 1}>" if number > 1 else None))
        for number in range(1, plan.chain.links + 1)
    ]


def _print_dry_run(launch: Launch, as_json: bool) -> None:
    import shlex

    from launcher.cli.plan_rows import plan_json
    from launcher.records import Backend
    from launcher.render import render_link

    plan = launch.plan
    slurm = plan.site.backend is Backend.SLURM
    if as_json:
        scripts = [render_link(plan, number) for number in range(1, plan.chain.links + 1)]
        print_json(
            {
                "version": 1,
                "dry_run": True,
                **plan_json(launch),
                "scripts": scripts,
                "submit": submit_lines(plan) if slurm else [],
            }
        )
        return
    show_plan(launch)
    note_live_runs(launch, refresh=False)
    if slurm:
        note("the chain would be submitted with:")
        for command in submit_lines(plan):
            click.echo(f"  {shlex.join(command)}", err=True)
    note(f"dry run: nothing was written or submitted; the script of link 1 of {plan.chain.links}:")
    click.echo(render_link(plan, 1), nl=False)


def _carry_out(launch: Launch, as_json: bool) -> None:
    """Snapshot, run directory, database row, chain: in this order, so that a stop at any point loses nothing."""
    from launcher.chain import submit_chain
    from launcher.cli.plan_rows import plan_json
    from launcher.provenance import read_provenance
    from launcher.rundir import create_run_dir
    from launcher.scheduler.base import scheduler_for
    from launcher.snapshot import make_snapshot
    from launcher.store import Store

    plan = launch.plan
    provenance = read_provenance(launch.tree, sys.argv)
    with spinner("making the snapshot of the source") as line:
        total = len(launch.tree.entries)

        def show(number: int) -> None:
            if line is not None:
                line.update(f"making the snapshot of the source: {number} of {total} files")

        make_snapshot(launch.tree, plan.site.work_root, show)
    store = Store.open(plan.site.work_root)
    try:
        create_run_dir(launch, provenance)
        store.add_run(plan, launch.spec.path, time.time())
        with spinner("submitting the chain"):
            report = submit_chain(plan, store, scheduler_for(plan.site.backend, plan.site.work_root))
    except KeyboardInterrupt:
        note(
            f"links that were submitted go on: launch status {plan.run_id} shows them, "
            f"launch cancel {plan.run_id} ends them"
        )
        raise
    finally:
        store.close()
    for line in report.notes:
        note(line)
    if as_json:
        print_json({"version": 1, "dry_run": False, **plan_json(launch), "job_ids": list(report.job_ids)})
        return
    click.echo(f"launched {plan.run_id}: {len(report.job_ids)} links ({', '.join(report.job_ids)})")
    if sys.stdout.isatty():
        for verb in ("status", "logs -f", "cancel"):
            click.echo(f"  launch {verb} {plan.run_id}")
