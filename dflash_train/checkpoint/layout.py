"""Where checkpoints lie and which of them are complete. manifest.json, written last, is the completeness marker."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_train.errors import CheckpointError, NotAcceptedError

MANIFEST = "manifest.json"
STEP_FOLDER = re.compile(r"step=(\d{8})")


@dataclass(frozen=True)
class TensorFact:
    dtype: str
    shape: list[int]


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint holds (docs/contract.md)."""

    version: int
    step: int
    created: float
    target_fingerprint: str | None
    config_sha256: str
    files: Mapping[str, int]
    tensors: Mapping[str, TensorFact]

    def write(self, folder: Path) -> None:
        """Temporary name, fsync, rename, fsync of the folder: there is never half a manifest."""
        temporary = folder / f".{MANIFEST}.tmp"
        with temporary.open("w", encoding="utf-8") as stream:
            json.dump(asdict(self), stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(folder / MANIFEST)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises CheckpointError when the folder has no readable manifest."""
        try:
            values = json.loads((folder / MANIFEST).read_text("utf-8"))
            tensors = {name: TensorFact(**fact) for name, fact in values.pop("tensors").items()}
            return cls(tensors=tensors, **values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder}: no readable {MANIFEST} ({error}); the save did not end") from None


def step_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step={step:08d}"


def fault_of(folder: Path) -> str | None:
    """Why a checkpoint folder is not complete, or None: the marker and every file that it names, with its size."""
    try:
        manifest = Manifest.read(folder)
    except CheckpointError as error:
        return str(error)
    for name, size in manifest.files.items():
        try:
            seen = (folder / name).stat().st_size
        except OSError:
            return f"{folder}: {name} is missing"
        if seen != size:
            return f"{folder}: {name} has {seen} bytes, {size} were saved"
    return None


def saved_steps(run_dir: Path) -> list[int]:
    """Steps that have a checkpoint folder, complete or not, ascending; anything of another name is passed over."""
    folder = run_dir / "checkpoints"
    found = [STEP_FOLDER.fullmatch(p.name) for p in folder.iterdir() if p.is_dir()] if folder.is_dir() else []
    return sorted(int(m[1]) for m in found if m)


def complete_steps(run_dir: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    return [step for step in saved_steps(run_dir) if fault_of(step_folder(run_dir, step)) is None]


def accepted_steps(run_dir: Path) -> list[int]:
    """Steps whose evidence says that they were accepted, ascending; what is no evidence is passed over."""
    found = [(STEP_FOLDER.fullmatch(path.stem), path) for path in (run_dir / "accepted").glob("*.json")]
    return sorted(int(match[1]) for match, path in found if match and _says_accepted(path))


def accepted_step(run_dir: Path, step: int | None) -> int:
    """The step asked for, or the newest accepted one. Raises NotAcceptedError when the launcher has not accepted it."""
    accepted = accepted_steps(run_dir)
    if step is None and accepted:
        return accepted[-1]
    if step is not None and step in accepted:
        return step
    what = f"step {step} was not" if step is not None else "no checkpoint was"
    raise NotAcceptedError(
        f"{run_dir.name}: {what} accepted; `launch accept {run_dir.name}` checks it (accepted: {accepted or 'none'})"
    )


def _says_accepted(path: Path) -> bool:
    try:
        evidence = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(evidence, dict) and evidence.get("accepted") is True
