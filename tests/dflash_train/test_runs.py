"""Whole runs through the commands: resumed, on two ranks, in bfloat16, signalled."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from dflash_train.checkpoint.layout import Manifest, complete_steps, step_folder
from dflash_train.checkpoint.resume import load_model
from dflash_train.target.load import load_target
from tests.dflash_train.runs import accept, command, config_of, metrics, new_run, speech_project, train

TOP = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return speech_project(tmp_path_factory.mktemp("project"))


def curve(run):
    """What must be alike, by step; the last line of a step wins."""
    names = ("loss", "base_loss", "selector_loss", "grad_norm", "lr", "tokens", "valid_blocks", "accept_len")
    return {line["step"]: [line[name] for name in names] for line in metrics(run) if "loss" in line}


def link(run, step, **environment):
    """A link in a process of its own, to optimizer step `step`."""
    return subprocess.Popen(
        [sys.executable, "-m", "dflash_train", "train", run / "resolved.yaml"],
        env=os.environ | {"LAUNCH_RUN_DIR": str(run), "LAUNCH_TARGET_STEP": str(step), "OMP_NUM_THREADS": "1"}
        | environment,
        cwd=TOP, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def ended(process, code=0):
    error = process.communicate(timeout=120)[1]
    assert process.returncode == code, error
    return error


def same_weights(one, other, step):
    first, second = (load_model(step_folder(run, step)) for run in (one, other))
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def test_the_demo_resumed_in_another_process_is_the_demo_bit_for_bit(tmp_path):
    config = yaml.safe_load((TOP / "experiments" / "demo.yaml").read_text())["config"]
    config["data"]["batch_size"] = 4
    config["lr_scheduler"]["warmup_steps"] = 1
    runs = [new_run(tmp_path / name, config | {"max_steps": 4}) for name in ("whole", "resumed")]
    torch.set_num_threads(1)  # as the link has: sums over threads round otherwise
    assert train(runs[0]).code == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAUNCH_TARGET_STEP", "2")
        assert train(runs[1]).code == 0
    assert complete_steps(runs[1]) == [2]
    error = ended(link(runs[1], 4, LAUNCH_LINK="2"))
    assert "resumed step=00000002: model, optimizer, lr " in error
    assert curve(runs[0]) == curve(runs[1])
    assert same_weights(*runs, 4)
    assert [line["link"] for line in metrics(runs[1])] == [1, 1, 2, 2]
    assert metrics(runs[0])[0]["lr"] == config["optimizer"]["lr"], "the warm-up of one step ends at step 1"


@pytest.mark.parametrize(
    ("target", "draft"), [("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("bfloat16", "float32")]
)
def test_bfloat16_trains_resumes_exports_and_decodes(project, tmp_path, target, draft):
    tree = config_of(project, target={"path": str(project / "target"), "precision": target}, draft__precision=draft)
    whole, resumed = (new_run(tmp_path / name, tree) for name in ("whole", "resumed"))
    assert train(whole).code == 0
    for step in ("2", "4"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LAUNCH_TARGET_STEP", step)
            assert train(resumed).code == 0
    assert curve(whole) == curve(resumed)
    assert same_weights(whole, resumed, 4)
    tensors = Manifest.read(step_folder(whole, 4)).tensors
    assert {fact.dtype for name, fact in tensors.items() if name.startswith("model.")} == {"float32"}
    accept(whole, 4)
    assert command("export", whole).code == 0
    answer = command("evaluate", whole, "--precision", "bfloat16", "--limit", 3, "--json")
    assert answer.code == 0, answer
    for result in json.loads(answer.output)["sets"].values():
        assert all({"id", "position", "margin"} == set(divergence) for divergence in result["divergences"])


def test_two_ranks_with_uneven_rows_end_together_at_their_deadline_and_one_goes_on(project, tmp_path):
    whole, run = (new_run(tmp_path / name, config_of(project, max_steps=2)) for name in ("whole", "two"))
    assert train(whole).code == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LAUNCH_DEADLINE": "1"}
    ranks = [link(run, 2, RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in range(2)]
    for rank in ranks:
        ended(rank)
    assert complete_steps(run) == [1], "past the deadline a link still makes one step, on every rank"
    assert train(run).code == 0
    first, second = curve(whole), curve(run)
    assert [len(metrics(r)) for r in (whole, run)] == [2, 2], "rank zero alone writes"
    for step in (1, 2):
        assert second[step] == pytest.approx(first[step], rel=1e-3)


def test_a_signal_to_every_process_of_a_link_still_saves_and_leaves_no_worker(project, tmp_path):
    run = new_run(tmp_path / "run", config_of(project, max_steps=100_000, data__num_workers=1))
    process = link(run, 100_000)
    waited = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() and time.monotonic() < waited and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    error = ended(process)
    assert "because of a signal" in error
    assert complete_steps(run) == [metrics(run)[-1]["step"]]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_the_stop_file_ends_a_link_with_workers(project, tmp_path):
    run = new_run(tmp_path / "run", config_of(project, data__num_workers=1))
    (run / "STOP").touch()
    assert train(run).code == 0
    assert complete_steps(run) == [1]
    assert multiprocessing.active_children() == []


def test_a_set_without_anchors_is_loud_and_its_accuracy_is_0(project, tmp_path, caplog):
    """Rows of this set are shorter than a block but for their prompt: nothing in them is supervised."""
    from dataclasses import replace

    from dflash_train.data.collate import collate as collated
    from dflash_train.data.loader import EvalData

    run = new_run(tmp_path / "run", config_of(project, max_steps=1, validation__interval=1))
    with pytest.MonkeyPatch.context() as patch:

        def unsupervised(data, limit=None):
            batch = collated(data.manifest, [0, 1], [0, 1], data.prompt)
            yield replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))

        patch.setattr(EvalData, "batches", unsupervised)
        assert train(run).code == 0
    assert metrics(run)[-1]["validation"] == {
        "again": {"val_loss": None, "val_accept_len": None, "val_acc": 0.0, "valid_anchors": 0}
    }
    assert "VALIDATION SET again HAS NO VALID ANCHOR" in caplog.text


def test_validation_rows_may_be_longer_than_any_training_row(project, tmp_path):
    """Slots are constant in a run: a longer row just has no more anchors than they."""
    from dflash_train.data.cuts import CutsFile, write_cuts
    from dflash_train.data.manifest import open_manifest

    cuts = CutsFile(project / "utterances.jsonl.gz")
    shortest = sorted(range(len(cuts)), key=lambda i: len(open_manifest(cuts.path).utterance(i).text))[:4]
    write_cuts(tmp_path / "short.jsonl.gz", [cuts.cut(i) for i in shortest])
    tree = config_of(project, max_steps=1, validation__interval=1, data__train=str(tmp_path / "short.jsonl.gz"))
    tree["objective"]["num_anchors"] = 512
    run = new_run(tmp_path / "run", tree)
    assert train(run).code == 0
    assert metrics(run)[-1]["validation"]["again"]["valid_anchors"] > 0


def test_a_speech_llm_is_trained_by_the_engine_in_two_links(project, tmp_path):
    tree = {
        "recipe": "salm", "max_steps": 4, "seed": 0,
        "salm": {"tokenizer": str(project / "tokenizer"), "num_mel_bins": 16, "encoder_hidden_size": 16,
                 "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_intermediate_size": 32,
                 "encoder_subsampling_channels": 4, "llm_hidden_size": 32, "llm_layers": 4, "llm_attention_heads": 4,
                 "llm_key_value_heads": 2, "llm_intermediate_size": 48},
        "data": {"train": str(project / "utterances.jsonl.gz"), "batch_size": 4},
        "validation": {"interval": 2, "sets": {"again": str(project / "utterances.jsonl.gz")}},
        "checkpoint": {"interval": 1},
    }  # fmt: skip
    whole, run = (new_run(tmp_path / name, tree) for name in ("whole", "run"))
    assert train(whole).code == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAUNCH_TARGET_STEP", "2")
        assert train(run).code == 0
    shutil.rmtree(run / "speech_lm")  # of the shorter run that ended at step 2
    assert train(run).code == 0
    assert complete_steps(run) == [1, 2, 3, 4]
    assert curve(run) == curve(whole), "dropout and SpecAugment are functions of the step too"
    assert load_target(run / "speech_lm").prompt is not None
    validation = [line["validation"]["again"] for line in metrics(run) if "validation" in line]
    assert [set(v) for v in validation] == [{"val_loss", "val_accept_len", "val_acc", "valid_anchors"}] * 2
    assert all(v["val_loss"] > 0 and v["val_accept_len"] is None for v in validation)
