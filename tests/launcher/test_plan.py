"""A plan is decided before anything is written; a run directory is whole or not there; every value knows its origin."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import yaml

from launcher.errors import LockHeld, SpecError
from launcher.origins import explain
from launcher.plan import Identity, Launch, check_config, gpu_hours, make_launch, new_identity
from launcher.profile import SiteChoice, load_profile
from launcher.provenance import read_provenance
from launcher.records import Chain, Resources
from launcher.rundir import create_run_dir
from launcher.snapshot import read_source
from launcher.spec import load_spec
from tests.launcher.small_project import git


def plan_of(project: Path, *overrides: str, spec: str = "demo.yaml") -> Launch:
    loaded = load_spec(project / "experiments" / spec, overrides)
    profile = load_profile(SiteChoice(project / "site_profiles" / "here.yaml", "--site"), project)
    checked = check_config(loaded, profile, project)
    tree = read_source(project, profile.site.work_root)
    return make_launch(loaded, profile, checked, tree, Identity("demo-20260101-abcd", "01234567"))


def test_run_ids_and_tokens_are_short_and_fresh() -> None:
    first, second = new_identity("demo", 0.0), new_identity("demo", 0.0)
    assert re.fullmatch(r"demo-\d{8}-[0-9a-f]{4}", first.run_id)
    assert re.fullmatch(r"[0-9a-f]{8}", first.token)
    assert first.token != second.token


def test_gpu_hours_count_every_link_to_its_wall_time() -> None:
    assert gpu_hours(Chain(3, 7200, 3600), Resources(nodes=2, gpus_per_node=8)) == (1 + 2 + 2) * 16


def test_planning_writes_nothing(project: Path) -> None:
    plan_of(project)
    assert not (project / "work").exists()


def test_a_run_directory_holds_what_was_meant_and_where_it_came_from(project: Path) -> None:
    (project / "experiments" / "sub.yaml").write_text("base: demo.yaml\nname: sub\nconfig:\n  seed: 3\n")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message=sub")
    (project / "fake_trainer" / "__init__.py").write_text("edited = True\n")
    launch = plan_of(project, spec="sub.yaml")
    run = create_run_dir(launch, read_provenance(launch.tree, ["launch", "x"]))
    names = {path.name for path in run.iterdir()}
    assert names == {
        *("spec.yaml", "spec.base-1.yaml", "site.yaml", "resolved.yaml", "run.json", "code.diff"),
        *("links", "events", "logs", "checkpoints", "accepted"),
    }
    assert (run / "spec.yaml").read_text() == (project / "experiments" / "sub.yaml").read_text()
    assert yaml.safe_load((run / "resolved.yaml").read_text())["seed"] == 3
    assert {path.name for path in (run / "links").iterdir()} == {"0001.sh", "0002.sh", "agent"}
    record = json.loads((run / "run.json").read_text())
    assert record["config_sha256"] == hashlib.sha256((run / "resolved.yaml").read_bytes()).hexdigest()
    assert record["code"]["revision"] == git(project, "rev-parse", "HEAD").strip()
    assert "edited = True" in (run / "code.diff").read_text()
    assert record["parent"] is None
    assert record["target"]["fingerprint"].startswith("sha256:")
    assert record["argv"] == ["launch", "x"]
    assert record["output_directory"] == str(run)
    for key in ("draft", "data", "seed", "versions", "host", "user", "snapshot", "origins"):
        assert key in record


def test_a_clean_tree_has_no_diff(project: Path) -> None:
    launch = plan_of(project)
    run = create_run_dir(launch, read_provenance(launch.tree, []))
    assert json.loads((run / "run.json").read_text())["code"]["diff"] is None
    assert not (run / "code.diff").exists()


def test_a_run_directory_is_made_once_and_leaves_nothing_when_it_fails(project: Path) -> None:
    launch = plan_of(project)
    provenance = read_provenance(launch.tree, [])
    run = create_run_dir(launch, provenance)
    before = (run / "run.json").read_bytes()
    with pytest.raises(LockHeld, match="exists already"):
        create_run_dir(launch, provenance)
    assert (run / "run.json").read_bytes() == before
    assert [path.name for path in run.parent.iterdir()] == [run.name]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("chain.links", "chain.links = 2  (experiments/demo.yaml:9)"),
        ("chain.walltime", "chain.walltime = '00:00:20'  (--set)"),
        ("chain.first_walltime", "chain.first_walltime = ''  (default)"),
        ("config.seed", "config.seed = 3  (experiments/sub.yaml:4)"),
        ("config.max_steps", "config.max_steps = 6  (experiments/demo.yaml:4)"),
        ("config.optimizer.lr", "config.optimizer.lr = 0.0006  (the trainer's default)"),
        ("site.poll_seconds", "site.poll_seconds = 1  (site_profiles/here.yaml:7)"),
        ("site.smoke", "site.smoke = 'none'  (default)"),
    ],
)
def test_every_value_can_be_explained(project: Path, key: str, said: str) -> None:
    (project / "experiments" / "sub.yaml").write_text("base: demo.yaml\nname: sub\nconfig:\n  seed: 3\n")
    launch = plan_of(project, "chain.walltime=00:00:20", spec="sub.yaml")
    assert [str(origin) for origin in explain(launch.origins, key)] == [said]


def test_a_derived_value_says_from_what_and_a_group_lists_its_values(project: Path) -> None:
    known = plan_of(project, "config.target.path=fake_trainer/__init__.py").origins
    assert "--set, then derived: " in explain(known, "config.target.path")[0].source
    assert [origin.key for origin in explain(known, "chain")] == [
        "chain.links",
        "chain.walltime",
        "chain.first_walltime",
    ]
    with pytest.raises(SpecError, match=r"did you mean `config\.optimizer\.lr`"):
        explain(known, "config.optimizer.lrr")
