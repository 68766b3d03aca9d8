"""Acceptance as a table: one good observation, and every way in which it can be spoilt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.accept import (
    FileSeen,
    Manifest,
    Observation,
    TensorInfo,
    accepted_steps,
    complete_steps,
    judge,
    list_files,
    read_manifest,
    write_evidence,
)
from launcher.metrics import StepLine, read_steps
from launcher.records import RunPaths

FILES = {"__0_0.distcp": 72, ".metadata": 8}
TENSORS = {"model.weight": TensorInfo("float32", (4, 4)), "optimizer.step": TensorInfo("float32", ())}
MANIFEST = Manifest(step=10, created=1000.0, files=FILES, tensors=TENSORS)
LISTING = {name: FileSeen(size, 1) for name, size in FILES.items()} | {"manifest.json": FileSeen(300, 2)}


def line(step: int, time: float, loss: float | None, grad_norm: float | None) -> StepLine:
    return StepLine(step, 1, time, loss, step_seconds=0.1, skipped=loss is None, grad_norm=grad_norm)


AFTER = line(11, 1001.0, 1.5, 0.1)
GOOD = Observation(
    step=10,
    target_step=20,
    first=LISTING,
    second=LISTING,
    interval_seconds=3.0,
    manifest=MANIFEST,
    reference=None,
    metrics=[line(10, 999.0, 1.6, 0.1), AFTER],
)


def listed(**changes: FileSeen | None) -> dict[str, FileSeen]:
    """The good listing with files changed, added or (None) taken away; "data" stands for the shard."""
    listing = dict(LISTING)
    for name, seen in changes.items():
        key = {"data": "__0_0.distcp"}.get(name, name.replace("__dot__", "."))
        if seen is None:
            del listing[key]
        else:
            listing[key] = seen
    return listing


def both(listing: dict[str, FileSeen]) -> Observation:
    return replace(GOOD, first=listing, second=listing)


def manifest(**changes: object) -> Observation:
    return replace(GOOD, manifest=replace(MANIFEST, **changes))  # type: ignore[arg-type]


def against(**tensors: TensorInfo) -> Observation:
    names = {"weight": "model.weight", "step": "optimizer.step"}
    reference = {names.get(name, name): tensor for name, tensor in tensors.items()}
    return replace(GOOD, reference=replace(MANIFEST, step=5, tensors=reference))


def log(*lines: StepLine, **changes: int) -> Observation:
    return replace(GOOD, metrics=list(lines), **changes)  # type: ignore[arg-type]


def test_a_good_checkpoint_passes_every_check() -> None:
    checks = judge(GOOD)
    assert [check.name for check in checks] == [
        *("manifest", "at_rest", "no_temporary", "no_empty", "files", "tensors", "dtypes", "finite_step")
    ]
    assert all(check.passed for check in checks)
    assert all(check.detail for check in checks)


FLOAT, BFLOAT, NAN = TensorInfo("float32", (4, 4)), TensorInfo("bfloat16", (4, 4)), float("nan")
SCALAR = TensorInfo("float32", ())


@pytest.mark.parametrize(
    ("seen", "check", "words"),
    [
        (replace(GOOD, manifest="no manifest.json in x"), "manifest", "no manifest.json"),
        (manifest(step=9), "manifest", "says step 9, the folder says 10"),
        (replace(GOOD, second=listed(data=FileSeen(73, 1))), "at_rest", "__0_0.distcp"),
        (replace(GOOD, second=listed(data=FileSeen(72, 2))), "at_rest", "something still writes here"),
        (replace(GOOD, second=listed(new=FileSeen(1, 1))), "at_rest", "new"),
        (replace(GOOD, first=listed(new=FileSeen(1, 1))), "at_rest", "new"),
        (both(listed(x__dot__tmp=FileSeen(1, 1))), "no_temporary", "x.tmp"),
        (both({**LISTING, "sub/.tmp123": FileSeen(1, 1)}), "no_temporary", ".tmp123"),
        (both({**LISTING, "manifest.json.tmp.77": FileSeen(1, 1)}), "no_temporary", "manifest.json.tmp.77"),
        (both(listed(data=FileSeen(0, 1))), "no_empty", "__0_0.distcp"),
        (both(listed(data=None)), "files", "__0_0.distcp is missing"),
        (both(listed(data=FileSeen(71, 1))), "files", "has 71 bytes, the manifest says 72"),
        (both(listed(extra=FileSeen(5, 1))), "files", "extra is not in the manifest"),
        (manifest(files={}), "files", "not in the manifest"),
        (manifest(tensors={}), "tensors", "names no tensor"),
        (manifest(tensors={"w": TensorInfo("", (1,))}), "tensors", "w"),
        (manifest(tensors={"w": TensorInfo("float32", (-1,))}), "tensors", "w"),
        (against(weight=BFLOAT, step=SCALAR), "dtypes", "model.weight was bfloat16[4, 4], is float32[4, 4]"),
        (against(weight=TensorInfo("float32", (4, 5)), step=SCALAR), "dtypes", "was float32[4, 5]"),
        (against(weight=FLOAT, step=SCALAR, bias=FLOAT), "dtypes", "bias is gone"),
        (against(weight=FLOAT), "dtypes", "optimizer.step is new"),
        (log(line(10, 999.0, 1.6, 0.1)), "finite_step", "no step after 10"),
        (log(replace(AFTER, loss=None)), "finite_step", "none with a finite loss"),
        (log(replace(AFTER, loss=NAN)), "finite_step", "none with a finite loss"),
        (log(replace(AFTER, grad_norm=float("inf"))), "finite_step", "none with a finite loss"),
        (log(replace(AFTER, grad_norm=None)), "finite_step", "none with a finite loss"),
        (log(replace(AFTER, time=998.0)), "finite_step", "since the save"),
        (log(target_step=10), "finite_step", "has no line"),
        (log(line(10, 999.0, None, 0.1), target_step=10), "finite_step", "the run ends here; loss None"),
    ],
)
def test_one_thing_wrong_fails_the_check_that_is_for_it(seen: Observation, check: str, words: str) -> None:
    failed = {item.name: item.detail for item in judge(seen) if not item.passed}
    assert check in failed
    assert words in failed[check]
    allowed = {
        "at_rest": {"files", "at_rest"},
        "no_temporary": {"files", "no_temporary"},
        "no_empty": {"files", "no_empty"},
    }
    assert set(failed) <= allowed.get(check, {check})


@pytest.mark.parametrize(
    "seen",
    [
        against(weight=FLOAT, step=SCALAR),
        log(replace(AFTER, loss=None), line(12, 1002.0, 1.0, 0.1)),  # one skipped step, then a good one
        log(line(10, 999.0, 1.0, 0.1), target_step=10),  # the run's end
        replace(GOOD, manifest=replace(MANIFEST, files={**FILES, "sub/x": 1}),
                first={**LISTING, "sub/x": FileSeen(1, 1)}, second={**LISTING, "sub/x": FileSeen(1, 1)}),
    ],
)  # fmt: skip
def test_what_is_right_in_another_way_is_accepted(seen: Observation) -> None:
    assert all(check.passed for check in judge(seen)), judge(seen)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    folder = paths.checkpoint(10)
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(b"12345678")
    write_manifest(folder)
    return paths


def write_manifest(folder: Path, change: Callable[[dict], object] = lambda _: None) -> None:
    raw = {
        "version": 1,
        "step": 10,
        "created": 5.0,
        "files": {"data": 8},
        "tensors": {"w": {"dtype": "float32", "shape": [2]}},
    }
    change(raw)
    (folder / "manifest.json").write_text(json.dumps(raw))


def test_listing_and_manifest_are_read_from_the_folder(paths: RunPaths) -> None:
    folder = paths.checkpoint(10)
    assert {name: seen.size for name, seen in list_files(folder).items()}["data"] == 8
    manifest = read_manifest(folder)
    assert isinstance(manifest, Manifest)
    assert (manifest.step, dict(manifest.files)) == (10, {"data": 8})
    assert manifest.tensors["w"] == TensorInfo("float32", (2,))


@pytest.mark.parametrize("name", ["tmp_0", "sub/.tmp1", "shard"])
@pytest.mark.parametrize(
    "make", [Path.mkdir, lambda path: path.symlink_to("/")], ids=["empty folder", "link to a folder"]
)
def test_an_empty_folder_and_a_link_to_one_are_seen(paths: RunPaths, name: str, make: Callable[[Path], object]) -> None:
    folder = paths.checkpoint(10)
    (folder / name).parent.mkdir(exist_ok=True)
    make(folder / name)
    seen = list_files(folder)
    assert set(seen) == {"data", "manifest.json", name}
    manifest = read_manifest(folder)
    checks = judge(replace(GOOD, first=seen, second=seen, manifest=manifest))
    assert f"{name} is not in the manifest" in {check.detail for check in checks if not check.passed}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw.pop("tensors"), "KeyError"),
        (lambda raw: raw.update(version=2), "version 2"),
        (lambda raw: raw.update(files=[1]), "docs/contract.md"),
        (lambda raw: raw["tensors"]["w"].pop("dtype"), "dtype"),
        (lambda raw: raw["tensors"]["w"].update(shape="x"), "docs/contract.md"),
        (lambda raw: raw["tensors"]["w"].update(shape=[2.5]), "2.5 is not a whole number"),
        (lambda raw: raw["tensors"]["w"].update(shape=[True]), "true is not a whole number"),
        (lambda raw: raw["files"].update(data="8"), '"8" is not a whole number'),
        (lambda raw: raw.update(step=10.9), "10.9 is not a whole number"),
    ],
)
def test_a_manifest_that_is_not_as_the_contract_says_is_a_reason(
    paths: RunPaths, change: Callable[[dict], object], words: str
) -> None:
    write_manifest(paths.checkpoint(10), change)
    reason = read_manifest(paths.checkpoint(10))
    assert isinstance(reason, str)
    assert words in reason


def test_a_torn_or_missing_manifest_is_a_reason(paths: RunPaths) -> None:
    (paths.checkpoint(10) / "manifest.json").write_text('{"version": 1, "st')
    assert "cannot be read" in str(read_manifest(paths.checkpoint(10)))
    (paths.checkpoint(10) / "manifest.json").unlink()
    assert "not complete" in str(read_manifest(paths.checkpoint(10)))


def test_the_log_gives_steps_and_not_validation_nor_torn_lines(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert list(read_steps(metrics)) == []
    common = '"link": 1, "time": 2.0, "step_seconds": 0.1, "skipped": false'
    metrics.write_text(
        f'{{"step": 1, {common}, "loss": null, "grad_norm": NaN}}\n'
        f'{{"step": 1, {common}, "loss": 0.5, "grad_norm": 0.1}}\n'
        '{"step": 1, "link": 1, "time": 2.5, "validation": {}}\n'
        f'{{"step": 2, {common}, "loss": null, "grad_norm": null}}\n'
        f'{{"step": 3, {common}, "loss": 0.4, "grad_norm": 0.1}}'
    )
    assert [(line.step, line.loss, line.grad_norm) for line in read_steps(metrics)] == [(1, 0.5, 0.1), (2, None, None)]


def test_only_numbered_folders_with_a_manifest_are_checkpoints(paths: RunPaths) -> None:
    for name in ("step=00000011", "step=00000012-last", "step=13", "last"):
        (paths.checkpoints / name).mkdir()
    (paths.checkpoints / "step=00000012-last" / "manifest.json").touch()
    (paths.checkpoints / "step=13" / "manifest.json").touch()
    assert complete_steps(paths) == [10]


def test_evidence_says_what_every_check_saw(paths: RunPaths) -> None:
    path, sha256 = write_evidence(paths, "demo-1", GOOD, judge(GOOD), 7.0)
    evidence = json.loads(path.read_text())
    assert path == paths.accepted / "step=00000010.json"
    assert evidence["accepted"] is True
    assert evidence["run_id"] == "demo-1"
    assert evidence["checks"][0]["name"] == "manifest"
    assert len(sha256) == 64
    assert accepted_steps(paths) == [10]
    assert [entry.name for entry in paths.accepted.iterdir()] == [path.name]
