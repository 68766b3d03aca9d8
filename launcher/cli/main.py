"""Entry point of `launch`: the group of verbs, the words of errors, and their exit codes.

Nothing heavy is imported here or at the top of a verb's file: `launch --help` must be quick on a login node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from launcher.cli.accept import accept
from launcher.cli.cancel import cancel
from launcher.cli.common import INTERRUPTED
from launcher.cli.logs import logs
from launcher.cli.run import run
from launcher.cli.show import show
from launcher.cli.status import status
from launcher.errors import LauncherError

BROKEN_PIPE = 141  # as a shell says of a program ended by SIGPIPE

EPILOG = """\b
Exit codes:
  0  done
  1  a bug of ours                6  unsure whether a job exists
  2  bad usage                    7  only a part of the chain submitted
  3  spec or site invalid         8  checkpoint not accepted
  4  preflight failed             9  somebody else holds the lock
  5  submission refused          10  alarm present, or the run ended early
"""


class LaunchGroup(click.Group):
    """`launch exp.yaml` is `launch run exp.yaml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before the first argument that is neither a verb nor an option of the group."""
        own = {name for parameter in self.params for name in parameter.opts} | {"--help", "-h"}
        for place, word in enumerate(args):
            if word in own:
                continue
            if word not in self.commands and (word.startswith("-") or looks_like_spec(word)):
                args = [*args[:place], "run", *args[place:]]
            break
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown verb is answered with the nearest one."""
        if args and args[0] not in self.commands:
            import difflib

            close = difflib.get_close_matches(args[0], self.commands, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"the verbs are {', '.join(self.commands)}"
            raise click.UsageError(f"`{args[0]}` is neither a verb nor a spec file: {hint}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a run's life, not of the alphabet."""
        return list(self.commands)


def looks_like_spec(word: str) -> bool:
    """A word that can only be meant as a spec file."""
    return word.endswith((".yaml", ".yml")) or os.path.isfile(word)


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    import importlib.metadata

    try:
        click.echo(f"launch {importlib.metadata.version('draftyard')}")
    except importlib.metadata.PackageNotFoundError:
        click.echo("launch, run from its source without being installed")
    ctx.exit()


@click.group(
    cls=LaunchGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli(debug: bool) -> None:
    """Launch training runs on a Slurm cluster or on this machine, as chains of links.

    Nothing is launched that was not checked, nothing is lost or run twice, and no checkpoint leaves its run that was
    not accepted. A run is a chain of links; a link is one Slurm job that ends with a save and hands over to the next.

    \b
      launch experiments/demo.yaml            check everything, show the plan, ask, submit the chain
      launch experiments/demo.yaml --dry-run  the exact script; nothing is written or submitted
      launch status                           where every run stands
      launch accept @last                     check its newest checkpoint and record it

    A RUN is named by its run id, a unique beginning of it, a name that only one run has, @last, or its directory.
    """


for verb in (run, status, logs, show, accept, cancel):
    cli.add_command(verb)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code; an error that a person can act on is a line, not a traceback."""
    sys.exit(run_cli(sys.argv[1:] if arguments is None else list(arguments)))


def run_cli(arguments: list[str]) -> int:
    """The exit code of a command line."""
    if "--debug" in arguments:
        # Welcome after the verb as well, where people put it.
        arguments = ["--debug", *(word for word in arguments if word != "--debug")]
    debug = arguments[:1] == ["--debug"]
    _open_streams()
    try:
        code = cli.main(arguments, prog_name="launch", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except LauncherError as error:
        return _report(str(error), error.exit_code, debug)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        usage = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "launch"
        return _report(f"{error.format_message()} (see `{usage} --help`)", error.exit_code, debug)
    except (click.Abort, KeyboardInterrupt):
        click.echo("launch: interrupted", err=True)
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # click makes the second of the first
        # The reader (head, less) has seen enough; nothing may be written at exit either. Not 0: what would have been
        # said, such as that a checkpoint is not accepted, was cut short.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001  the last resort: one line, and a code that says whose fault it is
        return _report(f"internal error: {type(error).__name__}: {error} (--debug shows where)", 1, debug)


def _open_streams() -> None:
    """Python has None where the caller closed a standard stream (`>&-`, some daemons); then nobody is there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  open as long as the program


def _report(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    for line in message.splitlines():
        click.echo(f"launch: error: {line}", err=True)
    return code
