"""The agent's command line: `[options] -- trainer argv`."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Sequence

from .decide import Verdict
from .link import Link
from .task import run_task


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The agent's own arguments and the trainer's command, which follows `--`."""
    at = list(argv).index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="run one link of a chain (used by links/NNNN.sh)")
    parser.add_argument("--task", action="store_true", help="be one task of the link")
    parser.add_argument(
        "--setup-failed", type=int, default=0, metavar="CODE", help="only record that a setup line failed"
    )
    parser.add_argument("--setup-line", default="", help="the line that failed")
    parser.add_argument("--walltime", type=float, default=0, help="seconds asked for")
    parser.add_argument("--save-margin", type=float, default=0, help="seconds before the end at which to save")
    parser.add_argument("--lock-stale", type=float, default=60, help="seconds after which a silent lock is taken over")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--tasks-per-node", type=int, default=1)
    parser.add_argument("--cpus-per-task", type=int, default=1)
    parser.add_argument("--snapshot-marker", default="", help="file that holds the snapshot's sha256")
    parser.add_argument("--snapshot-sha256", default="")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    own, command = split_command(argv)
    options = parse(own)
    if options.task:
        run_task(command)
    link = Link(options, command)
    if options.setup_failed:
        detail = f"setup line failed with {options.setup_failed}: {options.setup_line}"
        return link.leave(Verdict("crashed", detail, options.setup_failed))
    try:
        return link.run_link()
    except Exception as error:  # noqa: BLE001  the exit record is the only thing that the launcher sees of a fault here
        traceback.print_exc()
        link.record("crashed", 1, f"link agent: {type(error).__name__}: {error}")
        return 1
