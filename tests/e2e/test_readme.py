"""The command lines of README.md exist as they are written: verbs, options, make targets and files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from dflash_train.cli import main as dflash_train
from launcher.cli.main import cli as launch

TOP = Path(__file__).parents[2]
README = (TOP / "README.md").read_text("utf-8")
PROGRAMS = {"launch": launch, "dflash-train": dflash_train}


def command_lines() -> list[str]:
    """Lines of the code blocks and inline code that start with one of our programs."""
    blocks = re.findall(r"```\n(.*?)```", README, re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    wanted = re.compile(r"\$? ?(launch|dflash-train) \S")
    return sorted({line.removeprefix("$ ") for line in [*lines, *inline] if wanted.match(line)})


@pytest.mark.parametrize("line", command_lines())
def test_a_command_line_has_a_verb_and_options_that_exist(line: str) -> None:
    program, *words = shlex.split(line)
    group = PROGRAMS[program]
    verb = words[0] if words[0] in group.commands else "run"
    if words[0].startswith("--"):
        command: click.Command = group
    else:
        command = group.commands[verb]
        assert verb != "run" or words[0] == "run" or words[0].endswith(".yaml"), f"{words[0]} is no verb"
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    used = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert used <= known, f"{used - known} are no options of {program} {verb}"


def test_the_readme_shows_command_lines_of_both_programs() -> None:
    found = {line.split()[0] for line in command_lines()}
    assert found == set(PROGRAMS)
    assert len(command_lines()) >= 10


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    named = set(
        re.findall(r"\bmake ([a-z][a-z-]+)\b", " ".join(re.findall(r"`[^`]*`|^make \S+", README, re.MULTILINE)))
    )
    assert named
    assert named <= targets


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_files_that_are_linked_exist(link: str) -> None:
    assert (TOP / link).is_file()
