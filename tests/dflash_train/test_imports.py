"""Who may import what: read from the syntax trees, so that no line needs to run."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "dflash_train"
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path):
    """Dotted names of everything that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def users(package):
    found = set()
    for path in MODULES:
        if any(name == package or name.startswith(package + ".") for name in imported(path)):
            found.add(path.relative_to(PACKAGE).as_posix())
    return found


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("torch.distributed", ("engine/", "checkpoint/resume.py")),
        ("transformer_engine", ("engine/ops_te.py",)),
        ("lhotse", ("data/cuts.py",)),
        ("jiwer", ("evaluate/speech.py",)),
        ("rich", ("cli.py", "observe/bars.py", "evaluate/table.py")),
        ("click", ("cli.py", "cli_speech.py")),
        ("launcher", ()),
    ],
)
def test_a_package_has_its_place(package, allowed):
    assert {name for name in users(package) if not name.startswith(allowed or ("?",))} == set()


# From the bottom up: a folder imports from its own line and from those above it in this list.
LAYERS = (
    ("config", "errors"), ("config_tree", "records", "ranges"), ("model",), ("blocks",), ("objective",), ("data",),
    ("target",), ("resolve", "observe"), ("recipes",), ("engine", "checkpoint"), ("export", "decode"), ("evaluate",),
    ("train", "cli_speech"), ("cli",), ("__main__",),
)  # fmt: skip
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def test_imports_point_downward():
    upward = []
    for path in MODULES:
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "dflash_train" and len(parts) > 1 and parts[1] in HEIGHT and HEIGHT[parts[1]] > HEIGHT[here]:
                upward.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert upward == []


def test_only_the_commands_and_the_table_print():
    for path in MODULES:
        if path.name in ("cli.py", "cli_speech.py", "table.py"):
            continue
        calls = [n.func for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
        assert not [f for f in calls if isinstance(f, ast.Name) and f.id == "print"], path


def test_no_module_is_longer_than_300_lines():
    assert {p.name: n for p in MODULES if (n := len(p.read_text("utf-8").splitlines())) > 300} == {}
