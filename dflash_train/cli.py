"""The `dflash-train` command: words errors and prints, holds no logic. Only the verbs that need torch import it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, Any

import click

from dflash_train.cli_speech import compose, tokenizer, wer
from dflash_train.errors import ConfigError, DFlashError


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
        except OSError as error:  # a full disk, a folder that may not be written, a file where a folder is needed
            if ctx.params.get("debug"):
                raise
            click.echo(f"dflash-train: error: {error}", err=True)
            ctx.exit(4)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Train DFlash and DFlash2 drafts against a frozen speech LLM or text LLM, export and measure them.

    Exit codes: 0 done, 1 our bug or a numeric failure, 2 bad usage, 3 invalid config, 4 something named cannot be used,
    8 the step was not accepted.
    """


for verb in (tokenizer, compose, wer):
    main.add_command(verb)


@main.command()
@click.argument("config", type=click.File("r"))
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as one JSON object (docs/contract.md).")
def check(config: IO[str], as_json: bool) -> None:
    """Check every key of CONFIG (YAML or JSON; - is stdin) and fill in what it leaves open. Loads no weights."""
    import yaml

    from dflash_train import config_tree, resolve

    try:
        text = config.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{config.name}: not UTF-8: {error}") from None
    answer = resolve.resolve(config_tree.read_tree(text, config.name), Path.cwd())
    if as_json:
        click.echo(json.dumps(answer.to_json()))
    elif answer.config:
        click.echo(yaml.safe_dump(config_tree.to_tree(answer.config), sort_keys=False), nl=False)
    if not as_json:
        for mistake in answer.errors:
            click.echo(f"dflash-train: error: {mistake}", err=True)
    sys.exit(3 if answer.errors else 0)


@main.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where to write, when not started by `launch`.")
def train(config: Path, run_dir: Path | None) -> None:
    """Train one link of the run whose resolved config is CONFIG, from the newest complete checkpoint on."""
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    from dflash_train.train import train as train_link

    train_link(config, run_dir)


@main.command()
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--step", type=int, help="An accepted step; the newest by default.")
def export(run_dir: Path, step: int | None) -> None:
    """Write the draft of an accepted checkpoint to RUN_DIR/export/step=N, for servers, and reload it strictly."""
    from dflash_train.observe.bars import bars

    with bars("loading, writing and reloading the draft"):
        from dflash_train.export.run import export_step

        folder = export_step(run_dir, step)
    click.echo(folder)


@main.command()
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--step", type=int, help="An accepted and exported step; the newest accepted by default.")
@click.option("--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Rows of each set at most.")
@click.option("--json", "as_json", is_flag=True, help="Print what is written to RUN_DIR/evaluations instead of tables.")
def evaluate(run_dir: Path, step: int | None, precision: str, limit: int | None, as_json: bool) -> None:
    """Decode the run's validation sets with and without the exported draft, and compare token by token.

    Exits 1 when the tokens differ in float32; in bfloat16 each divergence is listed with the target's top-2 margin.
    """
    from rich.console import Console

    from dflash_train.config import Precision
    from dflash_train.evaluate.report import evaluation_json
    from dflash_train.evaluate.run import evaluate_run
    from dflash_train.evaluate.table import print_evaluation
    from dflash_train.observe.bars import bars

    with bars("loading target and draft") as bar:
        evaluation = evaluate_run(run_dir, step, Precision(precision), limit, bar)
    if as_json:
        click.echo(json.dumps(evaluation_json(evaluation)))
    else:
        print_evaluation(evaluation, Console())
    if evaluation.precision is Precision.float32 and not evaluation.identical:
        sys.exit(1)
