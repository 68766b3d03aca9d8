"""A run that was interrupted is the run that was not: bit for bit on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dflash_train.checkpoint.layout import complete_steps, step_folder
from dflash_train.checkpoint.resume import load_model
from dflash_train.errors import CheckpointError
from tests.dflash_train.drafts import draft_config, train_tiny


def lines(run_dir):
    """Metrics by step; the last line of a step wins."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {m["step"]: m for m in found}


def curve(run_dir):
    return {s: (m["loss"], m["grad_norm"], m["accept_len"], m["tokens"], m["lr"]) for s, m in lines(run_dir).items()}


def same_weights(one, other, step):
    first, second = (load_model(step_folder(run, step)) for run in (one, other))
    return all(first[name].equal(second[name]) for name in first)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole")
    train_tiny(run, 6)
    return run


@pytest.mark.parametrize("cuts", [(3,), (1, 2, 5)])
def test_losses_and_weights_after_a_resume_are_those_of_an_uninterrupted_run(whole, tmp_path, cuts):
    for link, until in enumerate((*cuts, 6), 1):
        train_tiny(tmp_path, until, link=link)
    assert curve(tmp_path) == curve(whole)
    assert same_weights(tmp_path, whole, 6)


def test_a_torn_checkpoint_is_not_taken_and_is_saved_again(whole, tmp_path):
    train_tiny(tmp_path, 2)
    train_tiny(tmp_path, 4, link=2)
    (step_folder(tmp_path, 4) / "manifest.json").unlink()  # as if killed before the marker
    (step_folder(tmp_path, 4) / "__0_0.distcp").write_bytes(b"torn")
    assert complete_steps(tmp_path) == [2]
    train_tiny(tmp_path, 6, link=3)
    assert curve(tmp_path) == curve(whole)
    assert complete_steps(tmp_path) == [2, 6]


def test_a_reached_target_step_trains_nothing(whole):
    before = (whole / "metrics.jsonl").read_bytes()
    train_tiny(whole, 6, link=2)
    assert (whole / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(("key", "value"), [("seed", 9), ("data", "other")])
def test_a_checkpoint_of_another_run_is_refused(tmp_path, key, value):
    train_tiny(tmp_path, 1)
    config = draft_config()
    if key == "data":
        config.data.revision = value
    else:
        config.seed = value
    with pytest.raises(CheckpointError, match=key):
        train_tiny(tmp_path, 2, config)


def test_the_manifest_names_every_file_and_tensor(whole):
    folder = step_folder(whole, 6)
    manifest = json.loads((folder / "manifest.json").read_text())
    on_disk = {p.name: p.stat().st_size for p in folder.iterdir() if p.name != "manifest.json"}
    assert manifest["files"] == on_disk
    assert manifest["step"] == 6
    model = {n for n in manifest["tensors"] if n.startswith("model.")}
    assert len(model) == 3 + 15 * 2 + 3
    assert {manifest["tensors"][n]["dtype"] for n in model} == {"float32"}
    assert sum(n.startswith("optimizer.") for n in manifest["tensors"]) >= 2 * len(model)


def run_ranks(world_size: int, run_dir: Path, until: int, micro_batches: int = 1) -> None:
    """`world_size` real gloo processes, each running the same code as one process does."""
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from tests.dflash_train.drafts import train_tiny\n"
        f"train_tiny(Path({str(run_dir)!r}), {until}, micro_batches={micro_batches})"
    )
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    errors = [process.communicate(timeout=120)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world_size, "\n".join(errors)


def close(one, other):
    first, second = curve(one), curve(other)
    assert first.keys() == second.keys()
    for step in first:
        torch.testing.assert_close(torch.tensor(first[step]), torch.tensor(second[step]), rtol=1e-4, atol=1e-5)


def test_two_ranks_are_one_rank_and_a_resume_may_change_their_number(whole, tmp_path):
    run_ranks(2, tmp_path, 3)
    assert len(list(step_folder(tmp_path, 3).glob("*.distcp"))) == 2, "each rank saves its own shards"
    train_tiny(tmp_path, 6, link=2)
    close(tmp_path, whole)


def test_accumulation_is_a_larger_batch(whole, tmp_path):
    train_tiny(tmp_path, 6, micro_batches=4)
    close(tmp_path, whole)
