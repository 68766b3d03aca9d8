"""Everything imports where only the declared dependencies are: a new venv with their closure and nothing else.

The packages are linked from this interpreter's own site-packages, so nothing is downloaded. lhotse imports urllib3 and
torchdata without declaring them; a package that we import and do not declare would fail here alike.
"""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

TOP = Path(__file__).parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]


def closure(requirements: list[str]) -> set[str]:
    """Names of the distributions that `requirements` bring, as installed here."""
    found: set[str] = set()
    queue = [Requirement(text) for text in requirements]
    while queue:
        wanted = queue.pop()
        key = wanted.name.lower().replace("_", "-")
        if key in found:
            continue
        found.add(key)
        for text in importlib.metadata.requires(wanted.name) or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in (*wanted.extras, "")):
                queue.append(needed)
    return found


def entries(name: str) -> Iterator[Path]:
    """Top-level files and folders of an installed distribution."""
    distribution = importlib.metadata.distribution(name)
    tops = {Path(str(file)).parts[0] for file in distribution.files or [] if ".." not in Path(str(file)).parts}
    for top in tops - {"__pycache__"}:
        yield Path(str(distribution.locate_file(top)))


def bare_venv(folder: Path, requirements: list[str]) -> Path:
    """A venv that holds the closure of `requirements`; returns its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in closure(requirements):
        for entry in entries(name):
            if not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def modules(package: str) -> list[str]:
    paths = sorted((TOP / package).rglob("*.py"))
    names = [".".join(path.relative_to(TOP).with_suffix("").parts) for path in paths if path.stem != "__main__"]
    return [name.removesuffix(".__init__") for name in names]


BASE, TRAIN = PROJECT["dependencies"], PROJECT["optional-dependencies"]["train"]


@pytest.mark.parametrize(
    ("package", "requirements", "absent"),
    [("launcher", BASE, "torch"), ("dflash_train", TRAIN, "submitit")],
    ids=["launcher", "dflash_train"],
)
def test_every_module_imports_with_the_declared_dependencies_alone(
    tmp_path: Path, package: str, requirements: list[str], absent: str
) -> None:
    python = bare_venv(tmp_path / "venv", requirements)
    code = (
        "import importlib, importlib.util, sys\n"
        f"assert importlib.util.find_spec({absent!r}) is None, 'the venv holds more than was declared'\n"
        "for name in sys.argv[1:]: importlib.import_module(name)"
    )
    done = subprocess.run(
        [python, "-c", code, *modules(package)], cwd=TOP, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_launcher_never_imports_torch_and_the_trainer_never_the_launcher() -> None:
    for path in (TOP / "launcher").rglob("*.py"):
        assert not {"torch", "transformers", "lhotse", "dflash_train"} & imported(path), path
    for path in (TOP / "dflash_train").rglob("*.py"):
        assert "launcher" not in imported(path), path


def imported(path: Path) -> set[str]:
    """Top-level names that a module imports anywhere, functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
