"""`launch show`: what was meant and what was recorded, of a run or of a spec that is not launched yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.common import clock, console, find_run, json_option, open_runs, place_options, print_json

if TYPE_CHECKING:
    from launcher.origins import Origin
    from launcher.store import RunRow


@click.command()
@click.argument("what", metavar="RUN|SPEC")
@click.option("--path", "part", flag_value="path", help="The run directory.")
@click.option("--spec", "part", flag_value="spec", help="The spec as it was given.")
@click.option("--config", "part", flag_value="config", help="The trainer's whole config, resolved.")
@click.option("--diff", "part", flag_value="diff", help="Uncommitted changes of the code at launch.")
@click.option("--script", type=click.IntRange(min=1), metavar="N", help="The script of link N.")
@click.option("--explain", metavar="KEY", help="Which file and line, flag, default or derivation set KEY or a group.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key (of a SPEC only).")
@place_options
@json_option
def show(
    what: str,
    part: str | None,
    script: int | None,
    explain: str | None,
    overrides: tuple[str, ...],
    site: str | None,
    work_root: str | None,
    as_json: bool,
) -> None:
    """Show a run as it was recorded, or a spec as it would be launched.

    Keys for --explain are dotted: those of the spec as they are (chain.links), of the trainer's config under `config.`,
    of the site profile under `site.`.
    """
    if not Path(what).is_dir() and (Path(what).is_file() or what.endswith((".yaml", ".yml"))):
        _show_spec(what, part, script, explain, overrides, site, as_json)
        return
    if overrides:
        raise click.UsageError("--set goes with a SPEC; a run is what it was launched as")
    opened = open_runs(site, work_root, what)
    row = find_run(opened.store, what)
    opened.refresh(row)
    _show_run(row, part, script, explain, as_json)


def _show_spec(
    path: str,
    part: str | None,
    script: int | None,
    explain: str | None,
    overrides: tuple[str, ...],
    site: str | None,
    as_json: bool,
) -> None:
    from launcher.cli.run import prepare
    from launcher.errors import UsageError
    from launcher.plan import DRYRUN_IDENTITY
    from launcher.render import render_link

    launch = prepare(path, site, overrides, None, DRYRUN_IDENTITY)
    if part in ("path", "diff"):
        raise UsageError(f"--{part} goes with a RUN; {path} is not launched yet")
    if part == "spec":
        _print_text(part, launch.spec.sources[0].text, as_json)
    elif part == "config":
        _print_text(part, launch.resolved_text, as_json)
    elif script is not None:
        if script > launch.plan.chain.links:
            raise UsageError(f"--script {script}: the chain has {launch.plan.chain.links} links")
        _print_text("script", render_link(launch.plan, script), as_json)
    else:
        _print_origins(launch.origins, explain, as_json)


def _show_run(row: RunRow, part: str | None, script: int | None, explain: str | None, as_json: bool) -> None:
    from launcher.errors import PreflightError, UsageError

    paths = row.paths
    files = {"spec": row.run_dir / "spec.yaml", "config": paths.resolved, "diff": row.run_dir / "code.diff"}
    if part == "path":
        _print_text(part, f"{row.run_dir}\n", as_json)
        return
    try:
        record = json.loads(paths.run_json.read_text())
        if part == "diff" and not record["code"]["diff"]:
            _print_text(part, "", as_json)
        elif script is not None:
            if script > row.links:
                raise UsageError(f"--script {script}: the chain has {row.links} links")
            _print_text("script", paths.script(script).read_text(), as_json)
        elif part is not None:
            _print_text(part, files[part].read_text(errors="replace"), as_json)
        elif explain is not None:
            _print_origins(_recorded_origins(record), explain, as_json)
        elif as_json:
            print_json(record)
        else:
            _print_record(row, record)
    except (OSError, ValueError, KeyError) as error:
        raise PreflightError(f"the record of {row.run_id} cannot be read: {type(error).__name__}: {error}") from None


def _print_text(part: str, text: str, as_json: bool) -> None:
    """A text as it stands or, with --json, as the one value of an object."""
    if as_json:
        print_json({"version": 1, part: text.removesuffix("\n") if part == "path" else text})
    else:
        click.echo(text, nl=False)


def _recorded_origins(record: dict[str, Any]) -> tuple[Origin, ...]:
    from launcher.origins import Origin

    return tuple(Origin(key, entry["value"], entry["source"]) for key, entry in record["origins"].items())


def _print_origins(known: tuple[Origin, ...], key: str | None, as_json: bool) -> None:
    from launcher.origins import explain

    found = explain(known, key) if key else known
    if as_json:
        values = {origin.key: {"value": origin.value, "source": origin.source} for origin in found}
        print_json({"version": 1, "values": values})
        return
    for origin in found:
        click.echo(str(origin))


def _print_record(row: RunRow, record: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    code, chain, snapshot = record["code"], record["chain"], record["snapshot"]
    dirty = f" with uncommitted changes ({code['diff']})" if code["diff"] else ""
    rows = [
        ("run", row.run_id),
        ("directory", str(row.run_dir)),
        ("launched", f"{clock(record['created'])} by {record['user']} on {record['host']}"),
        ("with", " ".join(record["argv"])),
        ("spec", record["spec"]["path"]),
        ("site", f"{record['site']['name']} ({record['site']['backend']})"),
        ("chain", f"{chain['links']} links of {chain['walltime_seconds']} s, to step {record['target_step']}"),
        ("code", code["revision"] + dirty),
        ("snapshot", f"{snapshot['sha256'][:12]} ({snapshot['files']} files)"),
        ("config", f"sha256 {record['config_sha256'][:12]}, seed {record['seed']}"),
        ("target", _artifact(record["target"])),
        ("draft", _artifact(record["draft"])),
        ("data", record["data"]["revision"] or "not said"),
    ]
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    console().print(table)


def _artifact(value: dict[str, str] | None) -> str:
    return "none" if value is None else f"{value['path']} ({value['fingerprint'][:19]})"
