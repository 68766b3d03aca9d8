"""Acceptance: is the checkpoint of a step whole, at rest, of unchanged dtypes, and healthy in the step after it?

`judge` is pure, over what was seen; the functions below it look and record. Of a checkpoint only names, sizes, times
and manifest.json are read (docs/contract.md), never its tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.metrics import StepLine
from launcher.records import RunPaths

MANIFEST = "manifest.json"
_TEMPORARY = re.compile(
    r"(^|/)(\.?tmp[^/]*|[^/]*\.(tmp|temp|part|partial|incomplete|swp|lock|save_tmp)([.\-_][^/]*)?|[^/]*~)$", re.I
)
_DTYPE = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class FileSeen:
    """One file of a checkpoint at one look."""

    size: int  # bytes
    mtime_ns: int


Listing = Mapping[str, FileSeen]
"""Path inside the checkpoint, with /, -> what was seen of it."""


@dataclass(frozen=True)
class TensorInfo:
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Manifest:
    """manifest.json of one checkpoint."""

    step: int
    created: float  # unix seconds
    files: Mapping[str, int]  # name -> bytes
    tensors: Mapping[str, TensorInfo]
    sha256: str = ""  # of the file's bytes as they were read


@dataclass(frozen=True)
class Observation:
    """All that a judgement is made from."""

    step: int
    target_step: int
    first: Listing
    second: Listing
    interval_seconds: float  # between the two
    manifest: Manifest | str  # a text: why it could not be read
    reference: Manifest | None  # of the newest accepted step before this one
    metrics: Sequence[StepLine]  # one a step, the last that the log has of it


@dataclass(frozen=True)
class Check:
    """One check and what it saw."""

    name: str
    passed: bool
    detail: str


def judge(seen: Observation) -> tuple[Check, ...]:
    """Every check in order; accepted when all passed. Without a readable manifest, those that need none."""
    manifest = seen.manifest
    if isinstance(manifest, str):
        return (Check("manifest", False, manifest), _at_rest(seen), _no_temporary(seen), _no_empty(seen))
    return (
        _manifest(manifest, seen),
        _at_rest(seen),
        _no_temporary(seen),
        _no_empty(seen),
        _files(manifest, seen),
        _tensors(manifest),
        _dtypes(manifest, seen.reference),
        _finite_step(manifest, seen),
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _manifest(manifest: Manifest, seen: Observation) -> Check:
    if manifest.step != seen.step:
        return Check("manifest", False, f"says step {manifest.step}, the folder says {seen.step}")
    return Check(
        "manifest", True, f"step {manifest.step}, {len(manifest.files)} files, {len(manifest.tensors)} tensors"
    )


def _at_rest(seen: Observation) -> Check:
    changed = sorted(n for n in seen.first.keys() | seen.second.keys() if seen.first.get(n) != seen.second.get(n))
    apart = f"two listings {seen.interval_seconds:.1f} s apart"
    if changed:
        return Check("at_rest", False, f"{apart} differ: {_some(changed)}: something still writes here")
    return Check("at_rest", True, f"{apart} are equal ({len(seen.second)} files)")


def _no_temporary(seen: Observation) -> Check:
    found = sorted(name for name in seen.second if _TEMPORARY.search(name))
    return Check("no_temporary", not found, f"temporary: {_some(found)}" if found else "no temporary file")


def _no_empty(seen: Observation) -> Check:
    found = sorted(name for name, file in seen.second.items() if file.size == 0)
    return Check("no_empty", not found, f"of zero bytes: {_some(found)}" if found else "no file of zero bytes")


def _files(manifest: Manifest, seen: Observation) -> Check:
    present = {name: file.size for name, file in seen.second.items() if name != MANIFEST}
    wrong = [f"{name} is missing" for name in sorted(manifest.files.keys() - present.keys())]
    wrong += [f"{name} is not in the manifest" for name in sorted(present.keys() - manifest.files.keys())]
    for name in sorted(manifest.files.keys() & present.keys()):
        if manifest.files[name] != present[name]:
            wrong.append(f"{name} has {present[name]} bytes, the manifest says {manifest.files[name]}")
    if not manifest.files:
        wrong.append("the manifest names no file")
    total = sum(present.values())
    return Check(
        "files", not wrong, _some(wrong) if wrong else f"{len(present)} files, {total} bytes, all as in the manifest"
    )


def _tensors(manifest: Manifest) -> Check:
    wrong = sorted(
        name
        for name, tensor in manifest.tensors.items()
        if not _DTYPE.fullmatch(tensor.dtype) or any(size < 0 for size in tensor.shape)
    )
    if wrong or not manifest.tensors:
        return Check(
            "tensors", False, f"no dtype or shape: {_some(wrong)}" if wrong else "the manifest names no tensor"
        )
    return Check("tensors", True, f"{len(manifest.tensors)} tensors with dtype and shape")


def _dtypes(manifest: Manifest, reference: Manifest | None) -> Check:
    dtypes = sorted({tensor.dtype for tensor in manifest.tensors.values()})
    if reference is None:
        return Check("dtypes", True, f"{', '.join(dtypes)}; nothing accepted before to compare with")
    old, new = reference.tensors, manifest.tensors
    wrong = [f"{name} is gone" for name in sorted(old.keys() - new.keys())]
    wrong += [f"{name} is new" for name in sorted(new.keys() - old.keys())]
    wrong += [f"{n} was {old[n]}, is {new[n]}" for n in sorted(old.keys() & new.keys()) if old[n] != new[n]]
    against = f"against accepted step {reference.step}"
    return Check(
        "dtypes", not wrong, f"{against}: {_some(wrong)}" if wrong else f"{', '.join(dtypes)}, unchanged {against}"
    )


def _finite_step(manifest: Manifest, seen: Observation) -> Check:
    """A finite step made after the save. Steps of an earlier attempt, written before the save, prove nothing of it."""
    if seen.step >= seen.target_step:
        own = next((line for line in seen.metrics if line.step == seen.step), None)
        if own is None:
            return Check("finite_step", False, f"the run's last step {seen.step} has no line in metrics.jsonl")
        detail = f"the run ends here; loss {own.loss}, grad_norm {own.grad_norm} of step {own.step}"
        return Check("finite_step", _finite(own), detail)
    after = [line for line in seen.metrics if line.step > seen.step and line.time >= manifest.created]
    good = next((line for line in after if _finite(line)), None)
    if good is not None:
        return Check(
            "finite_step", True, f"step {good.step} after the save: loss {good.loss}, grad_norm {good.grad_norm}"
        )
    if after:
        return Check("finite_step", False, f"{len(after)} steps after the save, none with a finite loss and grad_norm")
    return Check(
        "finite_step", False, f"no step after {seen.step} since the save, so nothing shows that the state is healthy"
    )


def _finite(line: StepLine) -> bool:
    return all(value is not None and math.isfinite(value) for value in (line.loss, line.grad_norm))


def list_files(folder: Path) -> dict[str, FileSeen]:
    """Every file, link and empty folder under `folder`, read anew (no cached directory entries are trusted)."""
    found: dict[str, FileSeen] = {}
    for parent, folders, names in os.walk(folder):
        # A link to a folder is not walked into, and an empty folder holds no name: both are nobody's tensors.
        leaves = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        if not folders and not names and Path(parent) != folder:
            leaves.append("")
        for name in (*names, *leaves):
            path = Path(parent) / name
            try:
                info = path.lstat()
            except FileNotFoundError:
                continue  # gone between listing and look: the other listing will differ
            found[path.relative_to(folder).as_posix()] = FileSeen(info.st_size, info.st_mtime_ns)
    return found


def read_manifest(folder: Path) -> Manifest | str:
    """The manifest of a checkpoint, or why it cannot be read."""
    try:
        content = (folder / MANIFEST).read_bytes()
        raw = json.loads(content)
    except FileNotFoundError:
        return f"no {MANIFEST} in {folder}: the checkpoint is not complete"
    except (OSError, ValueError) as error:
        return f"{folder / MANIFEST} cannot be read: {error}"
    try:
        if raw["version"] != 1:
            return f"{MANIFEST} has version {raw['version']}; 1 is read here"
        return Manifest(
            step=_whole(raw["step"]),
            created=float(raw["created"]),
            files={str(name): _whole(size) for name, size in raw["files"].items()},
            tensors={
                str(name): TensorInfo(str(tensor["dtype"]), tuple(_whole(size) for size in tensor["shape"]))
                for name, tensor in raw["tensors"].items()
            },
            sha256=hashlib.sha256(content).hexdigest(),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return f"{MANIFEST} is not as docs/contract.md says: {type(error).__name__}: {error}"


def _whole(value: object) -> int:
    """A whole number as JSON has it; int() would also take 1.5, true and "4" for one.

    Raises:
        TypeError: anything else.
    """
    if type(value) is not int:
        raise TypeError(f"{json.dumps(value)} is not a whole number")
    return value


def complete_steps(paths: RunPaths) -> list[int]:
    """Steps whose checkpoint has a manifest, ascending."""
    found = []
    for manifest in paths.checkpoints.glob(f"step=*/{MANIFEST}"):
        digits = manifest.parent.name.removeprefix("step=")
        if digits.isdigit() and manifest.parent == paths.checkpoint(int(digits)):
            found.append(int(digits))
    return sorted(found)


def accepted_steps(paths: RunPaths) -> list[int]:
    """Steps that have evidence, ascending. The files are the truth."""
    digits = (path.stem.removeprefix("step=") for path in paths.accepted.glob("step=*.json"))
    return sorted(int(step) for step in digits if step.isdigit())


@dataclass(frozen=True)
class Evidence:
    """What the evidence file of an accepted step says."""

    checks: tuple[Check, ...]
    accepted_at: float  # unix seconds
    manifest_sha256: str
    sha256: str  # of the evidence file


def read_evidence(path: Path) -> Evidence | None:
    """The evidence in a file; None where there is none that can be read."""
    try:
        content = path.read_bytes()
        raw = json.loads(content)
        checks = tuple(Check(**check) for check in raw["checks"])
        manifest, sha256 = str(raw["manifest_sha256"]), hashlib.sha256(content).hexdigest()
        return Evidence(checks, float(raw["accepted_at"]), manifest, sha256)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_evidence(
    paths: RunPaths, run_id: str, seen: Observation, checks: Sequence[Check], now: float
) -> tuple[Path, str]:
    """Write the evidence of an accepted step (temporary name, fsync, rename, fsync of the folder); path and sha256."""
    content = {
        "version": 1,
        "accepted": True,
        "run_id": run_id,
        "step": seen.step,
        "accepted_at": now,
        "interval_seconds": seen.interval_seconds,
        "reference_step": seen.reference.step if seen.reference else None,
        "manifest_sha256": seen.manifest.sha256 if isinstance(seen.manifest, Manifest) else None,
        "files": {name: file.size for name, file in sorted(seen.second.items())},
        "checks": [asdict(check) for check in checks],
    }
    text = json.dumps(content, indent=1) + "\n"
    path = paths.evidence(seen.step)
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return path, hashlib.sha256(text.encode()).hexdigest()
