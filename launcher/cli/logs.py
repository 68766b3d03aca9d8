"""`launch logs`: what the links of a run printed, followed across link changes with -f."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.cli.common import Runs, find_run, json_option, note, open_runs, place_options, print_json

if TYPE_CHECKING:
    from launcher.records import RunPaths
    from launcher.store import RunRow

POLL_SECONDS = 0.5


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--link", type=click.IntRange(min=1), help="The log of this link; else of the newest that wrote one.")
@click.option("-f", "--follow", is_flag=True, help="Go on printing, across links, until the run is over.")
@click.option("-n", "--lines", type=click.IntRange(min=1), help="Only the last so many lines of what is there.")
@place_options
@json_option
def logs(
    run: str,
    link: int | None,
    follow: bool,
    lines: int | None,
    site: str | None,
    work_root: str | None,
    as_json: bool,
) -> None:
    """Print the log of a link of RUN. With --json: the log files and their sizes."""
    opened = open_runs(site, work_root, run)
    row = find_run(opened.store, run)
    opened.refresh(row)
    found = log_files(row.paths)
    if as_json:
        entries = [{"link": n, "path": str(p), "bytes": p.stat().st_size} for n, p in found if link in (None, n)]
        print_json({"version": 1, "run_id": row.run_id, "logs": entries})
        return
    chosen = [(number, path) for number, path in found if link in (None, number)]
    if not chosen and not follow:
        which = f"link {link}" if link else "any link"
        note(f"{row.run_id}: no log of {which} yet in {row.paths.logs}")
        return
    position = 0
    current = chosen[-1][1] if chosen else None
    if current:
        note(f"{current}")
        position = _print_from(current, _start(current, lines) if lines else 0)
    if follow:
        try:
            _follow(opened, row, link, current, position)
        except KeyboardInterrupt:
            note(f"{row.run_id} goes on. Watch it: launch status {row.run_id} · end it: launch cancel {row.run_id}")
            raise click.Abort from None


def log_files(paths: RunPaths) -> list[tuple[int, Path]]:
    """Link number and path of every link's log, in order of link and time."""
    found = [(path.name.split(".")[0], path) for path in paths.logs.glob("*.out")]
    numbered = [(int(digits), path) for digits, path in found if digits.isdigit()]
    return sorted(numbered, key=lambda item: (item[0], item[1].stat().st_mtime_ns))


def _follow(opened: Runs, row: RunRow, link: int | None, current: Path | None, position: int) -> None:
    """Print what is appended; go on to the next link's log when it appears; end when no link is left to write."""
    while True:
        over = _over(opened, row, link)
        if current:
            position = _print_from(current, position)
        newer = [path for number, path in log_files(row.paths) if link in (None, number)]
        for path in newer[newer.index(current) + 1 :] if current in newer else newer:
            note(f"{path}")
            current, position = path, _print_from(path, 0)
        if over:
            return
        time.sleep(POLL_SECONDS)


def _over(opened: Runs, row: RunRow, link: int | None) -> bool:
    from launcher.records import LinkState
    from launcher.status import read_status

    opened.refresh(row)
    status = read_status(opened.store.find_run(row.run_id), opened.store, time.time())
    if link is None:
        return status.over
    return any(item.number == link and item.state in (LinkState.ENDED, LinkState.REFUSED) for item in status.links)


def _start(path: Path, lines: int) -> int:
    """Byte at which the last `lines` lines begin."""
    content = path.read_bytes()
    place = len(content.rstrip(b"\n"))
    for _ in range(lines):
        place = content.rfind(b"\n", 0, place)
        if place < 0:
            return 0
    return place + 1


def _print_from(path: Path, position: int) -> int:
    """Print the file from a byte on; the position after it. Bytes go out as they are, whatever their encoding."""
    with path.open("rb") as file:
        file.seek(position)
        content = file.read()
    out = getattr(sys.stdout, "buffer", None)
    if out is None:
        click.echo(content, nl=False)
    else:
        out.write(content)
        out.flush()
    return position + len(content)
