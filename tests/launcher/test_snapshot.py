"""A snapshot holds what git lists, edits included, under the hash of its content."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from launcher import snapshot
from launcher.errors import PreflightError
from launcher.records import SNAPSHOT_MARKER
from launcher.snapshot import is_made, make_snapshot, read_source
from tests.launcher.small_project import git


def names(project: Path) -> set[str]:
    return {entry.path for entry in read_source(project, project / "work").entries}


def sha(project: Path) -> str:
    return read_source(project, project / "work").sha256


def test_tracked_and_untracked_files_are_taken_and_ignored_ones_not(project: Path) -> None:
    (project / "new.py").write_text("x = 1\n")
    (project / "work").mkdir()
    (project / "work" / "x").touch()
    assert "new.py" in names(project)
    assert "fake_trainer/__main__.py" in names(project)
    assert not any(name.startswith(("work", ".git/")) for name in names(project))


def test_a_work_root_that_git_does_not_ignore_is_left_out_all_the_same(project: Path) -> None:
    (project / "results").mkdir()
    (project / "results" / "x").touch()
    tree = read_source(project, project / "results")
    assert not any(entry.path.startswith("results") for entry in tree.entries)


def test_a_tracked_file_that_was_deleted_is_gone(project: Path) -> None:
    (project / ".gitignore").unlink()
    assert ".gitignore" not in names(project)


def test_the_hash_is_of_paths_modes_and_contents_alone(project: Path) -> None:
    before = sha(project)
    file = project / "experiments" / "demo.yaml"
    os.utime(file, (1, 1))
    assert sha(project) == before
    file.chmod(0o755)
    executable = sha(project)
    assert executable != before
    file.chmod(0o644)
    text = file.read_text()
    file.write_text(text + "\n")
    assert sha(project) not in (before, executable)
    file.write_text(text)
    assert sha(project) == before
    file.rename(file.with_name("other.yaml"))
    assert sha(project) != before


def test_links_modes_and_odd_names_are_kept_and_the_copy_is_read_only(project: Path) -> None:
    (project / "link").symlink_to("fake_trainer/__main__.py")
    (project / "dangling").symlink_to("nowhere")
    script = project / "a b\nc.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    tree = read_source(project, project / "work")
    path = make_snapshot(tree, project / "work")
    assert path == project / "work" / "snapshots" / tree.sha256
    assert os.readlink(path / "link") == "fake_trainer/__main__.py"
    assert os.readlink(path / "dangling") == "nowhere"
    assert stat.S_IMODE((path / script.name).stat().st_mode) == 0o555
    assert stat.S_IMODE((path / "link").stat().st_mode) == 0o444
    assert stat.S_IMODE(path.stat().st_mode) == 0o555
    assert (path / SNAPSHOT_MARKER).read_text() == tree.sha256 + "\n"
    assert is_made(path)


def test_the_same_source_is_copied_once(project: Path) -> None:
    work = project / "work"
    path = make_snapshot(read_source(project, work), work)
    inode = (path / "fake_trainer" / "__main__.py").stat().st_ino
    copied: list[int] = []
    assert make_snapshot(read_source(project, work), work, copied.append) == path
    assert not copied
    assert (path / "fake_trainer" / "__main__.py").stat().st_ino == inode
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_source_that_changes_under_the_copy_is_refused_and_leaves_nothing(project: Path) -> None:
    work = project / "work"
    tree = read_source(project, work)
    (project / "experiments" / "demo.yaml").write_text("name: changed\n")
    with pytest.raises(PreflightError, match="changed while it was copied"):
        make_snapshot(tree, work)
    assert not list((work / "snapshots").iterdir())


def test_a_half_made_snapshot_is_never_taken_for_one(project: Path) -> None:
    work = project / "work"
    tree = read_source(project, work)
    half = snapshot.snapshot_path(work, tree.sha256)
    half.mkdir(parents=True)
    assert not is_made(half)
    (half / SNAPSHOT_MARKER).write_text("0" * 64)
    assert not is_made(half)


def test_too_much_source_names_the_largest_files(project: Path) -> None:
    for number in range(12):
        (project / f"big{number:02d}").write_bytes(b"x" * (1000 + number))
    with pytest.raises(PreflightError) as caught:
        read_source(project, project / "work", max_bytes=5000)
    message = str(caught.value)
    assert "big11" in message
    assert "big03" in message
    assert "big01" not in message
    assert ".gitignore" in message


def test_submodules_give_their_files(project: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "--quiet", "--initial-branch=main")
    (library / "lib.py").write_text("y = 2\n")
    git(library, "add", "--all")
    git(library, "commit", "--quiet", "--message=lib")
    git(project, "submodule", "--quiet", "add", str(library), "vendor")
    tree = read_source(project, project / "work")
    assert "vendor/lib.py" in {entry.path for entry in tree.entries}
    assert tree.submodules == ("vendor",)
    git(project, "commit", "--quiet", "--message=submodule")
    git(project, "submodule", "--quiet", "deinit", "--force", "vendor")
    with pytest.raises(PreflightError, match="git submodule update --init vendor"):
        read_source(project, project / "work")


def test_what_is_neither_file_nor_link_is_refused(project: Path) -> None:
    file = project / "experiments" / "demo.yaml"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(PreflightError, match=r"experiments/demo.yaml is neither"):
        read_source(project, project / "work")


def test_outside_of_git_the_way_out_is_said(tmp_path: Path) -> None:
    from launcher.git import work_tree_top

    with pytest.raises(PreflightError, match="run `git init`"):
        work_tree_top(tmp_path)
