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


def complete_steps(run_dir: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    folder = run_dir / "checkpoints"
    found = [STEP_FOLDER.fullmatch(p.name) for p in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(m[1]) for m in found if m and (folder / m[0] / MANIFEST).is_file())


def accepted_step(run_dir: Path, step: int | None) -> int:
    """The step asked for, or the newest accepted one. Raises NotAcceptedError when the launcher has not accepted it."""
    accepted = sorted(int(m[1]) for p in (run_dir / "accepted").glob("*.json") if (m := STEP_FOLDER.fullmatch(p.stem)))
    if step is None and accepted:
        return accepted[-1]
    if step in accepted:
        assert step is not None
        return step
    what = f"step {step} was" if step is not None else "no checkpoint was"
    raise NotAcceptedError(
        f"{run_dir.name}: {what} accepted; `launch accept {run_dir.name}` checks it (accepted: {accepted or 'none'})"
    )
