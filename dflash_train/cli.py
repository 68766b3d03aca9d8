"""The `dflash-train` command: words errors and prints, holds no logic. torch is imported inside the verbs that need it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, Any

import click

from dflash_train.errors import DFlashError


class _Group(click.Group):
    """Words every DFlashError in one line and exits with its code; a traceback is shown only with --debug."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DFlashError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"dflash-train: error: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Train DFlash and DFlash2 drafts against a frozen speech LLM or text LLM, export and measure them.

    Exit codes: 0 done, 1 our bug or a numeric failure, 2 bad usage, 3 invalid config, 4 something named cannot be used,
    8 the step was not accepted.
    """


@main.command()
@click.argument("config", type=click.File("r"))
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as one JSON object (docs/contract.md).")
def check(config: IO[str], as_json: bool) -> None:
    """Check every key of CONFIG (YAML or JSON; - is stdin) and fill in what it leaves open. Loads no weights."""
    import yaml

    from dflash_train import resolve

    try:
        tree = yaml.safe_load(config)
    except yaml.YAMLError as error:
        raise click.UsageError(f"{config.name}: not YAML: {' '.join(str(error).split())}") from None
    answer = resolve.resolve(tree if isinstance(tree, dict) else {}, Path.cwd())
    if as_json:
        click.echo(json.dumps(answer.to_json()))
    elif answer.config:
        from dflash_train import config_tree

        click.echo(yaml.safe_dump(config_tree.to_tree(answer.config), sort_keys=False), nl=False)
    if not as_json:
        for mistake in answer.errors:
            click.echo(f"dflash-train: error: {mistake}", err=True)
    sys.exit(3 if answer.errors else 0)
