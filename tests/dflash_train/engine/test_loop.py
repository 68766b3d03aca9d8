"""When a link ends, what a skipped step moves, and what is refused before anything moves."""

import json
import signal
import time

import pytest
import torch

from dflash_train.checkpoint.layout import complete_steps, step_folder
from dflash_train.checkpoint.resume import load_model
from dflash_train.config import Precision
from dflash_train.engine.loop import Training
from dflash_train.engine.parallel import shard
from dflash_train.engine.processes import process_group
from dflash_train.engine.stop import Assignment, StopWatch
from dflash_train.errors import ConfigError, NumericsError
from dflash_train.recipes.draft import draft_recipe
from tests.dflash_train.drafts import LONGEST, TextSteps, draft_config, train_tiny
from tests.dflash_train.tiny import tiny_target


def end_of(tmp_path, deadline=None, prepare=lambda run_dir, watch: None, until=500):
    """Steps done by a link that would train to `until`."""
    assignment = Assignment(tmp_path, 1, deadline, until)
    watch = StopWatch(assignment)
    config = draft_config()
    with process_group() as processes:
        recipe = draft_recipe(config, tiny_target(), LONGEST)
        shard(recipe.module, processes.mesh, Precision.float32)
        prepare(tmp_path, watch)
        done = Training(config, "c", recipe, TextSteps(), {}, processes, assignment).run(watch)
    assert complete_steps(tmp_path) == [done], "a link always ends with a save"
    return done


def test_a_link_saves_and_ends_at_its_deadline(tmp_path):
    deadline = time.time() + 1.0
    done = end_of(tmp_path, deadline)
    assert 1 <= done < 500
    assert time.time() >= deadline


def test_a_link_past_its_deadline_still_makes_one_step(tmp_path):
    assert end_of(tmp_path, deadline=1.0) == 1


def test_a_link_ends_at_the_stop_file(tmp_path):
    assert end_of(tmp_path, prepare=lambda run_dir, watch: (run_dir / "STOP").touch()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_link_ends_at_a_signal(tmp_path, number):
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1)}

    def prepare(run_dir, watch):
        watch.listen()
        signal.raise_signal(number)

    try:
        assert end_of(tmp_path, prepare=prepare) == 1
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)


def test_a_step_without_anchors_moves_neither_weights_nor_optimizer(tmp_path):
    train_tiny(tmp_path, 2)
    train_tiny(tmp_path, 4, link=2, lengths=(5, 4, 3, 5))  # prompts alone: nothing is supervised
    saved = [load_model(step_folder(tmp_path, step)) for step in (2, 4)]
    assert all(saved[0][name].equal(saved[1][name]) for name in saved[0])
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (line["step"], line["loss"], line["skipped"], line["skip_reason"]) == (4, None, True, "no_valid_anchors")


def test_a_loss_that_is_not_finite_stops_the_run_before_the_update(tmp_path):
    config = draft_config()
    assignment = Assignment(tmp_path, 1, None, 6)
    with process_group() as processes:
        recipe = draft_recipe(config, tiny_target(), LONGEST)
        shard(recipe.module, processes.mesh, Precision.float32)
        training = Training(config, "c", recipe, TextSteps(), {}, processes, assignment)
        with torch.no_grad():
            recipe.module.norm.weight.mul_(float("inf"))
        before = [p.to_local().clone() for p in recipe.module.parameters()]
        with pytest.raises(NumericsError, match="step 1: loss nan"):
            training.run(StopWatch(assignment))
        assert all(p.to_local().equal(q) for p, q in zip(recipe.module.parameters(), before, strict=True))
    assert complete_steps(tmp_path) == []


def test_without_a_run_directory_the_error_says_what_to_do(monkeypatch):
    monkeypatch.delenv("LAUNCH_RUN_DIR", raising=False)
    with pytest.raises(ConfigError, match="--run-dir"):
        Assignment.read(None)


def test_the_assignment_is_read_from_the_environment(monkeypatch, tmp_path):
    for name, value in {"RUN_DIR": str(tmp_path), "LINK": "3", "DEADLINE": "12.5", "TARGET_STEP": "40"}.items():
        monkeypatch.setenv(f"LAUNCH_{name}", value)
    assert Assignment.read(None) == Assignment(tmp_path, 3, 12.5, 40)
    monkeypatch.setenv("LAUNCH_LINK", "three")
    with pytest.raises(ConfigError, match="LAUNCH_LINK"):
        Assignment.read(None)
