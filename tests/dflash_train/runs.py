"""Whole runs of a tiny speech LLM, through the commands that a link and a person call."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from click.testing import CliRunner

from dflash_train import config_tree
from dflash_train.cli import main
from dflash_train.resolve import resolve
from tests.dflash_train.tiny import tiny_speech_lm, tiny_utterances

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@dataclass(frozen=True)
class Answer:
    """What a command did. crashed: it ended with an exception of its own instead of an exit."""

    code: int
    output: str
    error: str
    crashed: bool


@contextmanager
def signals_kept() -> Iterator[None]:
    """A link takes the signals over and ignores them at its end; the test process must not."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def command(*words: object) -> Answer:
    """`dflash-train WORDS`, in this process."""
    with signals_kept():
        result = CliRunner().invoke(main, [str(word) for word in words])
    crashed = result.exception is not None and not isinstance(result.exception, SystemExit)
    return Answer(result.exit_code, result.stdout, result.stderr, crashed)


def speech_project(top: Path) -> Path:
    """`top` with a tiny speech LLM (target/), its clips and a manifest of twelve utterances of them."""
    top.mkdir(parents=True, exist_ok=True)
    tiny_speech_lm(top).save(top / "target", torch.float32)
    tiny_utterances(top)
    return top


def config_of(top: Path, **changes: Any) -> dict[str, Any]:
    """A config as a spec gives it; `section__key=value` changes it."""
    tree: dict[str, Any] = {
        "max_steps": 4,
        "seed": 1,
        "target": {"path": str(top / "target")},
        "draft": {"num_hidden_layers": 1, "intermediate_size": 48, "selector_rank": 8, "selector_top_k": 4,
                  "conv_group_size": 8, "block_size": 4},
        "objective": {"num_anchors": 4},
        "data": {"train": str(top / "utterances.jsonl.gz"), "batch_size": 4},
        "validation": {"sets": {"again": str(top / "utterances.jsonl.gz")}},
    }  # fmt: skip
    for key, value in changes.items():
        section, _, leaf = key.rpartition("__")
        (tree.setdefault(section, {}) if section else tree)[leaf] = value
    return tree


def new_run(run_dir: Path, tree: dict[str, Any]) -> Path:
    """A run directory as the launcher makes it: with its resolved config."""
    answer = resolve(tree, Path.cwd())
    assert not answer.errors, answer.errors
    assert answer.config is not None
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "resolved.yaml").write_text(yaml.safe_dump(config_tree.to_tree(answer.config), sort_keys=False))
    return run_dir


def train(run_dir: Path) -> Answer:
    """One link."""
    return command("train", run_dir / "resolved.yaml", "--run-dir", run_dir)


def accept(run_dir: Path, step: int) -> None:
    """As the launcher does once a checkpoint has passed."""
    (run_dir / "accepted").mkdir(exist_ok=True)
    (run_dir / "accepted" / f"step={step:08d}.json").write_text(json.dumps({"accepted": True}))


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Every line, in the order written."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()]
