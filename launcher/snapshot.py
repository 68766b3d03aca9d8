"""Content-addressed snapshots of the source: what git lists (tracked, and untracked but not ignored), edits included.

A snapshot is made once under a temporary name, synced, made read-only and renamed to `<work_root>/snapshots/<sha256>`;
every link and every later run of the same source shares it. The hash is over (mode, path, content) of each file, so the
name proves the content and neither times nor the place of the work tree matter.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import PreflightError
from launcher.git import git
from launcher.records import SNAPSHOT_MARKER

MAX_BYTES = 2 * 1000**3


@dataclass(frozen=True)
class SourceEntry:
    """One file or symbolic link of the source."""

    path: str  # relative to the git top, with /
    mode: str  # as git spells it: 100644, 100755 or 120000 (a symbolic link)
    size: int  # bytes


@dataclass(frozen=True)
class SourceTree:
    """What a snapshot of the work tree would hold."""

    top: Path
    sha256: str
    entries: tuple[SourceEntry, ...]
    submodules: tuple[str, ...]  # paths of the submodules whose files are among the entries

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


def snapshot_path(work_root: Path, sha256: str) -> Path:
    """Where the snapshot of a hash lies."""
    return work_root / "snapshots" / sha256


def is_made(path: Path) -> bool:
    """Whether a finished snapshot lies at `path`."""
    try:
        return (path / SNAPSHOT_MARKER).read_text().strip() == path.name
    except (OSError, UnicodeDecodeError):
        return False


def read_source(top: Path, work_root: Path, max_bytes: int = MAX_BYTES) -> SourceTree:
    """List and hash the source of the work tree at `top`; reads only.

    Raises:
        PreflightError: larger than `max_bytes` (the ten largest files are named), or a file cannot be read.
    """
    submodules: list[str] = []
    excluded = _relative(work_root, top)
    listed = sorted(set(_listed(top, "", submodules)))
    kept = [path for path in listed if path != SNAPSHOT_MARKER and not _within(path, excluded)]
    entries = tuple(entry for path in kept if (entry := _entry(top, path)))
    total = sum(entry.size for entry in entries)
    if total > max_bytes:
        largest = sorted(entries, key=lambda entry: -entry.size)[:10]
        names = ", ".join(f"{entry.path} ({entry.size / 1e6:.1f} MB)" for entry in largest)
        raise PreflightError(
            f"the source has {total / 1e9:.2f} GB in {len(entries)} files, more than {max_bytes / 1e9:.2f} GB; "
            f"the largest: {names}: list data and results in .gitignore"
        )
    hashes = ((entry, _content_hash(top / entry.path, entry)) for entry in entries)
    return SourceTree(top, _tree_hash(hashes), entries, tuple(submodules))


def make_snapshot(tree: SourceTree, work_root: Path, progress: Callable[[int], None] = lambda _: None) -> Path:
    """Make the snapshot, or find it made; its path. `progress` is told the number of each file copied.

    Raises:
        PreflightError: a file changed while it was copied, or the disk refused.
    """
    final = snapshot_path(work_root, tree.sha256)
    if is_made(final):
        return final
    temporary = final.parent / f".making-{tree.sha256[:12]}-{secrets.token_hex(4)}"
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _copy(tree, temporary, progress)
        os.rename(temporary, final)
    except OSError as error:
        if is_made(final):  # another launch was faster; the content is the same by its name
            return final
        raise PreflightError(f"the snapshot of the source could not be made in {final.parent}: {error}") from None
    finally:
        _remove(temporary)
    _sync(final.parent)
    return final


def _relative(path: Path, top: Path) -> str | None:
    try:
        return path.resolve().relative_to(top.resolve()).as_posix()
    except ValueError:
        return None


def _within(path: str, folder: str | None) -> bool:
    return folder is not None and (path == folder or path.startswith(folder + "/"))


def _listed(top: Path, prefix: str, submodules: list[str]) -> Iterator[str]:
    """Paths relative to the outer top. Submodules and nested repositories (listed as folders) give their files."""
    for raw in git(top / prefix, "ls-files", "-co", "--exclude-standard", "-z").split(b"\0"):
        name = os.fsdecode(raw).rstrip("/")
        if not name:
            continue
        path = f"{prefix}/{name}" if prefix else name
        folder = top / path
        if folder.is_dir() and not folder.is_symlink():
            if not (folder / ".git").exists():
                raise PreflightError(f"submodule {path} is not checked out: run `git submodule update --init {path}`")
            submodules.append(path)
            yield from _listed(top, path, submodules)
        else:
            yield path


def _entry(top: Path, path: str) -> SourceEntry | None:
    try:
        info = (top / path).lstat()
    except FileNotFoundError:
        return None  # tracked and deleted: an edit like any other
    if stat.S_ISLNK(info.st_mode):
        return SourceEntry(path, "120000", info.st_size)
    if not stat.S_ISREG(info.st_mode):
        raise PreflightError(f"{path} is neither a file nor a symbolic link: list it in .gitignore")
    return SourceEntry(path, "100755" if info.st_mode & stat.S_IXUSR else "100644", info.st_size)


def _content_hash(path: Path, entry: SourceEntry) -> str:
    try:
        if entry.mode == "120000":
            return hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PreflightError(f"{entry.path}: cannot be read: {error.strerror}") from None


def _tree_hash(hashes: Iterator[tuple[SourceEntry, str]]) -> str:
    digest = hashlib.sha256()
    for entry, content in hashes:
        digest.update(f"{entry.mode} {content} ".encode() + os.fsencode(entry.path) + b"\0")
    return digest.hexdigest()


def _copy(tree: SourceTree, target: Path, progress: Callable[[int], None]) -> None:
    """Copy the tree to `target`, check that what was copied has the tree's hash, sync it, make it read-only."""
    target.mkdir()
    copied: list[tuple[SourceEntry, str]] = []
    for number, entry in enumerate(tree.entries, 1):
        source, copy = tree.top / entry.path, target / entry.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode == "120000":
            os.symlink(os.readlink(source), copy)
        else:
            shutil.copyfile(source, copy)
            copy.chmod(0o555 if entry.mode == "100755" else 0o444)
            _sync(copy)
        copied.append((entry, _content_hash(copy, entry)))
        progress(number)
    if _tree_hash(iter(copied)) != tree.sha256:
        raise PreflightError("the source changed while it was copied: launch again when no program writes into it")
    marker = target / SNAPSHOT_MARKER
    marker.write_text(tree.sha256 + "\n")
    marker.chmod(0o444)
    _sync(marker)
    for folder, _, _ in os.walk(target, topdown=False):
        os.chmod(folder, 0o555)
        _sync(Path(folder))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Remove a half-made snapshot, read-only folders included."""
    if not path.exists():
        return
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o755)
    shutil.rmtree(path, ignore_errors=True)
