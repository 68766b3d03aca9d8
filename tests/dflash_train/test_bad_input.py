"""What a person can get wrong: one clear line with its exit code, never a traceback, nothing half-done."""

import gzip
import json
import os
import resource
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from dflash_train import config_tree
from dflash_train.checkpoint.layout import complete_steps, step_folder
from tests.dflash_train.runs import accept, command, config_of, metrics, new_run, speech_project, train
from tests.dflash_train.tiny import tiny_llm


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return speech_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def trained(project, tmp_path_factory):
    """A run of four steps, accepted and exported."""
    run = new_run(tmp_path_factory.mktemp("runs") / "trained", config_of(project))
    assert train(run).code == 0
    accept(run, 4)
    assert command("export", run).code == 0
    return run


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the trained run that a test may spoil; of the same name, since an export knows its run."""
    return shutil.copytree(trained, tmp_path / "trained")


def refused(answer, code, says):
    """One line, no traceback, the exit code, and the words that help."""
    assert not answer.crashed, answer
    assert answer.code == code, answer
    assert says in answer.error
    assert len(answer.error.strip().splitlines()) == 1, answer.error


def change_config(run, **changes):
    tree = config_tree.load_yaml(run / "resolved.yaml")
    for key, value in changes.items():
        section, _, leaf = key.rpartition("__")
        (tree[section] if section else tree)[leaf] = value
    (run / "resolved.yaml").write_text(yaml.safe_dump(tree))


# --- data


def spoilt_manifest(project, change):
    packed = (project / "utterances.jsonl.gz").read_bytes()
    lines = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
    change(lines)
    path = project / "spoilt.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return str(path)


def forget_text(lines):
    for track in lines[3]["tracks"]:
        track["cut"]["supervisions"] = []


def write_a_letter_that_is_unknown(lines):
    lines[5]["tracks"][0]["cut"]["supervisions"][0]["text"] = "señor"


def lose_recording(lines):
    lines[0]["tracks"][0]["cut"]["recording"]["sources"][0]["source"] = "clips/none.flac"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (list.clear, "holds no cut"),
        (forget_text, "spoilt.jsonl.gz:4: train-0-00003: no text"),
        (write_a_letter_that_is_unknown, "spoilt.jsonl.gz:6: train-0-00005: the tokenizer cannot write"),
        (lose_recording, "clips/none.flac does not exist"),
    ],
)
@pytest.mark.parametrize("key", ["train", "set"])
def test_a_manifest_that_cannot_be_used(project, tmp_path, change, says, key):
    path = spoilt_manifest(project, change)
    changes = {"data__train": path} if key == "train" else {"validation": {"interval": 2, "sets": {"spoilt": path}}}
    run = new_run(tmp_path / "run", config_of(project, **changes))
    refused(train(run), 4, says)
    assert [p.name for p in run.iterdir()] == ["resolved.yaml"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_recording_that_cannot_be_read(project, tmp_path, workers):
    flac = project / "clips" / "3.flac"
    whole = flac.read_bytes()
    run = new_run(tmp_path / "run", config_of(project, data__num_workers=workers))
    flac.write_bytes(whole[:200])
    try:
        refused(train(run), 4, "the audio cannot be read")
    finally:
        flac.write_bytes(whole)
    assert complete_steps(run) == []


# --- target


def edit(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


LLM, ENCODER, PROJECTOR = "llm/model.safetensors", "encoder/model.safetensors", "projector.safetensors"


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        (LLM, lambda p: edit(p, lambda t: t.pop("model.norm.weight")), "are missing: model.norm.weight"),
        (LLM, lambda p: edit(p, lambda t: t.update(extra=torch.ones(2))), "the model does not have: extra"),
        (LLM, lambda p: edit(p, lambda t: t.update({"model.norm.weight": torch.ones(3)})), "of another shape"),
        (LLM, lambda p: edit(p, lambda t: t["model.norm.weight"].fill_(float("nan"))), "not finite"),
        (LLM, lambda p: p.write_bytes(b"junk" * 100), "llm cannot be loaded"),
        (LLM, lambda p: p.unlink(), "no file named model.safetensors"),
        (ENCODER, lambda p: p.write_bytes(p.read_bytes()[:-100]), "encoder cannot be loaded"),
        (PROJECTOR, lambda p: edit(p, lambda t: t.pop("up.bias")), "up.bias: shape missing"),
        (PROJECTOR, lambda p: p.write_bytes(b"junk" * 100), "projector.safetensors cannot be read"),
        ("llm/tokenizer.json", lambda p: p.write_text("{"), "the tokenizer cannot be loaded"),
    ],
)
def test_a_target_that_is_not_whole(project, tmp_path, file, change, says):
    target = shutil.copytree(project / "target", tmp_path / "target")
    change(target / file)
    run = new_run(tmp_path / "run", config_of(project, target__path=str(target)))
    refused(train(run), 4, says)
    assert [p.name for p in run.iterdir()] == ["resolved.yaml"]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("speech_lm.json", "{", "cannot be read as JSON"),
        ("llm/config.json", "[1]", "one JSON object"),
        ("llm/config.json", "{}", "no hidden_size"),
        ("speech_lm.json", '{"mask_token_id": "last"}', "mask_token_id: 'last'"),
    ],
)
def test_check_names_a_target_file_that_it_cannot_read(project, tmp_path, file, text, says):
    target = shutil.copytree(project / "target", tmp_path / "target")
    (target / file).write_text(text)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config_of(project, target__path=str(target))))
    refused(command("check", tmp_path / "config.yaml"), 3, says)


def test_a_mask_token_that_answers_may_hold(project, tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config_of(project, draft__mask_token_id=3)))
    refused(command("check", tmp_path / "config.yaml"), 3, "may be a token of an answer")


def test_a_text_llm_as_the_target(project, tmp_path):
    tiny_llm().save_pretrained(tmp_path / "llm")
    tree = config_of(project, target__path=str(tmp_path / "llm"), draft__mask_token_id=96)
    refused(train(new_run(tmp_path / "run", tree)), 3, "is a text LLM")


def test_a_target_that_has_changed_since(run, project):
    description = project / "target" / "speech_lm.json"
    before = description.read_text()
    description.write_text(before + "\n")
    try:
        refused(train(run), 3, "they are not what was meant")
        refused(command("evaluate", run), 4, "the draft was trained on sha256:")
    finally:
        description.write_text(before)


# --- the run directory and the ranks


def test_a_run_directory_that_is_a_file(run, tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        refused(command("train", run / "resolved.yaml", "--run-dir", place), 3, "cannot be the run directory")


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RANK": "0"}, "LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not"),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not"),
        ({"RANK": "x", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1", "MASTER_ADDR": "h"}, "integers"),
        ({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1", "MASTER_ADDR": "h"}, "counts from 0"),
    ],
)
def test_ranks_that_are_half_described(run, monkeypatch, environment, says):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    refused(train(run), 3, says)


@pytest.mark.parametrize(
    ("content", "says"), [(b"a: [", "not YAML"), (b"\xff\xfe", "cannot be read"), (None, "no such")]
)
def test_a_config_that_is_none(run, content, says):
    config = run / "resolved.yaml"
    config.unlink()
    if content is not None:
        config.write_bytes(content)
    for answer in (train(run), command("export", run), command("evaluate", run)):
        refused(answer, 3, says)


# --- checkpoints


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer__lr", 0.5), ("lr_scheduler__kind", "cosine"), ("draft__block_size", 8), ("data__batch_size", 2),
        ("draft__target_layer_ids", [1]), ("objective__label_source", "ground_truth"), ("draft__variant", "dflash"),
        ("objective__loss_decay_gamma", None), ("target__precision", "bfloat16"), ("seed", 2),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_config_is_named_by_its_key(run, key, value):
    change_config(run, max_steps=6, **{key: value})
    before = metrics(run)
    refused(train(run), 4, f"saved with {key.replace('__', '.')}: ")
    assert metrics(run) == before


def test_a_longer_run_and_other_workers_are_no_other_config(run):
    change_config(run, max_steps=5, data__accumulation=2, checkpoint__interval=3)
    assert train(run).code == 0
    assert complete_steps(run) == [4, 5]


def test_a_torn_newest_checkpoint_is_passed_over_loudly_and_junk_quietly(run, caplog):
    change_config(run, max_steps=6)
    assert train(run).code == 0
    shard = next(step_folder(run, 6).glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    (run / "checkpoints" / "junk").mkdir()
    (run / "checkpoints" / "step=00000009").touch()
    assert complete_steps(run) == [4]
    assert train(run).code == 0
    assert "passed over" in caplog.text
    assert complete_steps(run) == [4, 6], "the torn one was saved again"


def test_a_damaged_checkpoint_is_not_exported(run):
    shutil.rmtree(run / "export")
    shard = next(step_folder(run, 4).glob("*.distcp"))
    shard.write_bytes(bytes(len(shard.read_bytes())))  # of the right size
    refused(command("export", run), 4, "cannot be loaded")
    shard.write_bytes(b"short")
    refused(command("export", run), 4, "has 5 bytes")
    assert not (run / "export").exists()


def test_a_full_disk_leaves_no_manifest(run):
    """The kernel refuses to let a file grow over a limit, as it does on a full disk."""
    change_config(run, max_steps=5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        answer = train(run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refused(answer, 4, "step=00000005: cannot be saved")
    assert not (step_folder(run, 5) / "manifest.json").exists()
    assert complete_steps(run) == [4]
    assert train(run).code == 0
    assert complete_steps(run) == [4, 5]


# --- export and evaluate


@pytest.mark.parametrize(
    ("spoil", "words", "code", "says"),
    [
        (lambda run: shutil.rmtree(run / "accepted"), (), 8, "no checkpoint was accepted"),
        (lambda run: None, ("--step", 3), 8, "step 3 was not accepted"),
        (lambda run: accept(run, 3), ("--step", 3), 4, "step=00000003"),
        (lambda run: (run / "metrics.jsonl").write_text(""), (), 4, "no step that was trained"),
        (lambda run: (run / "metrics.jsonl").unlink(), (), 4, "no step that was trained"),
        (lambda run: shutil.rmtree(run / "export"), (), 4, "not exported yet"),
        (lambda run: run.rename(run.with_name("other")), (), 4, "is of run trained, not other"),
        (lambda run: change_config(run, validation__sets={}), (), 3, "validation.sets is empty"),
        (lambda run: change_config(run, validation__sets={"a": "/nowhere.jsonl"}), (), 4, "does not exist"),
        (lambda run: change_config(run, recipe="salm"), (), 3, "trains no draft"),
    ],
)
def test_a_run_that_cannot_be_evaluated(run, spoil, words, code, says):
    spoil(run)
    folder = run if run.exists() else run.with_name("other")
    refused(command("evaluate", folder, *words), code, says)
    assert not (folder / "evaluations").exists()


def test_junk_among_the_accepted_is_no_evidence(run):
    (run / "accepted" / "step=00000007.json").write_text("not json")
    (run / "accepted" / "step=00000008.json").write_text('{"accepted": false}')
    (run / "accepted" / "step=00000009.json").mkdir()
    (run / "accepted" / "notes.json").write_text("{}")
    assert command("export", run).output.strip().endswith("step=00000004")


def test_half_a_metrics_line_of_a_killed_process_spoils_nothing(run):
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 5, "lo')
    change_config(run, max_steps=5)
    assert train(run).code == 0
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 5
    assert command("evaluate", run, "--limit", 1).code == 0


def test_a_limit_of_no_rows_is_bad_usage(run):
    assert command("evaluate", run, "--limit", 0).code == 2


def test_debug_shows_the_traceback(run, tmp_path):
    (tmp_path / "file").touch()
    answer = command("--debug", "train", run / "resolved.yaml", "--run-dir", os.fspath(tmp_path / "file"))
    assert answer.crashed
