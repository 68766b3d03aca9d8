"""`check`: every mistake named with its key, derived values with where they came from, no torch."""

import json
import os
import subprocess
import sys

import pytest

from dflash_train.config_tree import parse, to_tree
from dflash_train.resolve import default_taps, resolve
from tests.dflash_train.tiny import tiny_llm


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a tiny target and manifests, as a spec would name them."""
    top = tmp_path_factory.mktemp("project")
    tiny_llm(num_hidden_layers=10).save_pretrained(top / "target")
    for name in ("train.jsonl", "held_out.jsonl"):
        (top / name).write_text('{"id": "x"}\n')
    return top


def tree(**changes):
    config = {
        "max_steps": 10, "target": {"path": "target"}, "draft": {"mask_token_id": 96, "num_hidden_layers": 3},
        "data": {"train": "train.jsonl"},
    }  # fmt: skip
    for key, value in changes.items():
        section, _, leaf = key.rpartition("__")
        (config.setdefault(section, {}) if section else config)[leaf] = value
    return config


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"optimizer__lrr": 1}, "optimizer.lrr", "did you mean optimizer.lr?"),
        ({"block_size": 8}, "block_size", "did you mean draft.block_size?"),
        ({"zzz": 1}, "zzz", "allowed here: recipe, seed"),
        ({"seed": "7"}, "seed", "an integer is wanted, '7' (str)"),
        ({"seed": True}, "seed", "an integer is wanted"),
        ({"draft__variant": "dflash3"}, "draft.variant", "one of dflash, dflash2"),
        ({"optimizer": 3}, "optimizer", "a section of keys"),
        ({"max_steps": 0}, "max_steps", "at which optimizer step"),
        ({"draft__target_layer_ids": [5, 2]}, "draft.target_layer_ids", "write [2, 5]"),
        ({"draft__target_layer_ids": [1, 10]}, "draft.target_layer_ids", "0 to 9"),
        ({"draft__conv_group_size": 5}, "draft.conv_group_size", "does not divide the hidden size 32"),
        ({"draft__mask_token_id": 97}, "draft.mask_token_id", "not an id of the target's 97"),
        ({"draft__mask_token_id": None}, "draft.mask_token_id", "names no mask token"),
        ({"draft__selector_top_k": 98}, "draft.selector_top_k", "98 candidates of a vocabulary of 97"),
        ({"objective__loss_decay_gamma": 0}, "objective.loss_decay_gamma", "above 0, or null"),
        ({"data__train": "nope.jsonl"}, "data.train", "no such file"),
        ({"data": {}}, "data.train", "required"),
        ({"target": {"path": "nowhere"}}, "target.path", "no such folder"),
        ({"target__fingerprint": "sha256:0"}, "target.fingerprint", "not what was meant"),
        ({"data__batch_size": 9, "data__accumulation": 2}, "data.batch_size", "not a multiple"),
        ({"validation__interval": 5}, "validation.interval", "validation.sets is empty"),
        ({"optimizer__betas": [0.9]}, "optimizer.betas", "two numbers"),
    ],
)
def test_a_mistake_is_named_with_its_key_and_what_to_do(project, changes, key, says):
    answer = resolve(tree(**changes), project)
    assert answer.config is None
    (error,) = answer.errors
    assert error.key == key
    assert says in str(error)


def test_all_wrong_keys_are_named_at_once(project):
    answer = resolve(tree(optimizer__lrr=1, seed="7", block_size=8), project)
    assert [error.key for error in answer.errors] == ["block_size", "optimizer.lrr", "seed"] or len(answer.errors) == 3


def test_what_is_left_open_is_derived_and_says_from_what(project):
    answer = resolve(tree(validation__sets={"held_out": "held_out.jsonl"}), project)
    config, facts = answer.config, answer.facts
    assert config.draft.target_layer_ids == [1, 4, 7] == default_taps(10, 3)
    assert answer.origins["draft.target_layer_ids"] == "derived: 10 target layers, 3 draft layers"
    assert (config.draft.intermediate_size, config.draft.head_dim) == (64, 8)
    assert config.lr_scheduler.horizon == 10
    assert answer.origins["max_steps"] == "given"
    assert answer.origins["optimizer.lr"] == "default"
    assert config.data.train == str(project / "train.jsonl")
    assert facts["target_step"] == 10
    assert facts["target"] == {"path": str(project / "target"), "fingerprint": config.target.fingerprint}
    assert facts["data"]["paths"] == [str(project / "train.jsonl"), str(project / "held_out.jsonl")]


def test_a_resolved_config_resolves_to_itself(project):
    first = resolve(tree(), project).config
    again = resolve(to_tree(first), project / "elsewhere").config
    assert again == first == parse(to_tree(first))


@pytest.mark.parametrize(
    ("layers", "taps", "wanted"),
    [(36, 5, [1, 9, 17, 25, 33]), (36, 6, [1, 7, 14, 20, 27, 33]), (36, 1, [18])],
)
def test_default_taps_are_the_published_ones(layers, taps, wanted):
    assert default_taps(layers, taps) == wanted


def test_the_fingerprint_follows_the_content(project):
    first = resolve(tree(), project).config.target.fingerprint
    (project / "target" / "note.txt").write_text("x")
    second = resolve(tree(), project).config.target.fingerprint
    (project / "target" / "note.txt").unlink()
    assert second != first == resolve(tree(), project).config.target.fingerprint


def run_check(config, cwd):
    code = (
        "import sys\nfrom dflash_train.cli import main\n"
        "try: main(['check', '--json', '-'])\n"
        "finally: assert not {'torch', 'transformers', 'lhotse'} & set(sys.modules), 'heavy imports'"
    )
    return subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(config), cwd=cwd, capture_output=True, text=True
    )


def test_check_answers_in_json_without_torch(project, monkeypatch):
    from pathlib import Path

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    good = run_check(tree(), project)
    assert good.returncode == 0, good.stderr
    answer = json.loads(good.stdout)
    assert answer["ok"] is True
    assert answer["resolved"]["draft"]["target_layer_ids"] == [1, 4, 7]
    bad = run_check(tree(seed="7"), project)
    assert bad.returncode == 3
    assert json.loads(bad.stdout)["errors"] == [
        {"key": "seed", "message": "seed: an integer is wanted, '7' (str) was given", "nearest": None}
    ]
