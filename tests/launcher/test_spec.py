"""An experiment spec: every key checked, with file, line, key, what was seen and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import SpecError
from launcher.keys import SiteKeys, SpecKeys
from launcher.profile import SiteChoice, load_profile
from launcher.schema import key_types, walltime_seconds, walltime_text
from launcher.spec import check_against_site, load_spec

WriteSpec = Callable[..., Path]

CHAIN = 'chain:\n  walltime: "00:10:00"\n'


def test_the_keys_are_these() -> None:
    assert list(key_types(SpecKeys)) == [
        *("name", "base", "adapter", "module", "command", "target_step", "config"),
        *("resources", "resources.nodes", "resources.tasks_per_node", "resources.gpus_per_node"),
        *("resources.cpus_per_task", "resources.memory"),
        *("chain", "chain.links", "chain.walltime", "chain.first_walltime"),
    ]
    assert list(key_types(SiteKeys)) == [
        *("name", "backend", "python", "work_root", "max_walltime", "save_margin_seconds", "lock_stale_seconds"),
        *("accept_interval_seconds", "poll_seconds", "smoke", "setup", "env"),
        *("slurm", "slurm.partition", "slurm.account", "slurm.qos", "slurm.constraint", "slurm.reservation"),
        *("slurm.exclude", "slurm.gpu_option"),
    ]


def test_a_spec_becomes_records(project: Path) -> None:
    spec = load_spec(Path("experiments/demo.yaml"))
    assert (spec.name, spec.module, spec.target_step) == ("demo", "fake_trainer", None)
    assert (spec.chain.links, spec.chain.walltime_seconds, spec.chain.first_walltime_seconds) == (2, 30, 30)
    assert spec.config["checkpoint"] == {"interval": 3}
    assert spec.resources.world_size == 1


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("nam: x\n" + CHAIN, "demo.yaml:1", "unknown key `nam`: did you mean `name`?"),
        ("name: x\nchain:\n  link: 2\n", "demo.yaml:3", "unknown key `chain.link`: did you mean `chain.links`?"),
        ("name: x\nslurm: {partition: p}\n" + CHAIN, "demo.yaml:2", "it belongs in the site profile"),
        ("name: x\nsave_margin_seconds: 5\n" + CHAIN, "demo.yaml:2", "it belongs in the site profile"),
        ("name: x\npartition: p\n" + CHAIN, "demo.yaml:2", "did you mean `slurm.partition`, in the site profile?"),
        ("name: x\nnodes: 2\n" + CHAIN, "demo.yaml:2", "did you mean `resources.nodes`?"),
        ("name: x\nwalltime: '1'\n" + CHAIN, "demo.yaml:2", "did you mean `chain.walltime`?"),
        ("name: x\nchain: {walltime: 04:00:00}\n", "demo.yaml:2", 'quote it ("04:00:00")'),
        ("name: x\nchain: {walltime: 4:00:00}\n", "demo.yaml:2", "chain.walltime: `4:00:00`"),
        ('name: x\nchain: {walltime: "4h"}\n', "demo.yaml:2", 'expected "HH:MM:SS" or "D-HH:MM:SS", got "4h"'),
        ('name: x\nchain: {walltime: "00:00:00"}\n', "demo.yaml:2", "zero"),
        ('name: x\nchain: {walltime: "01:00:00", links: "7"}\n', "demo.yaml:2", "write it without quotes"),
        ('name: x\nchain: {walltime: "01:00:00", links: 2.0}\n', "demo.yaml:2", "expected a whole number, got `2.0`"),
        ('name: x\nchain: {walltime: "01:00:00", links: 0}\n', "demo.yaml:2", "at least 1"),
        ("name: 5\n" + CHAIN, "demo.yaml:1", "expected text, got `5`: quote it"),
        ("name:\n" + CHAIN, "demo.yaml:1", "expected text, got nothing"),
        ("name: Bad Name\n" + CHAIN, "demo.yaml:1", "only a-z"),
        ("name: x\nchain: 3\n", "demo.yaml:2", "expected a group of keys"),
        ("name: x\nadapter: comand\n" + CHAIN, "demo.yaml:2", "did you mean command?"),
        ("name: x\nresources: {memory: 64GiB}\n" + CHAIN, "demo.yaml:2", 'as in "64G"'),
        ("name: x\nconfig: {a: {b: '${oc.env:HOME}'}}\n" + CHAIN, "demo.yaml:2", "is not interpolated"),
        ("name: x\ntarget_step: 5\n" + CHAIN, "demo.yaml:2", "only with `adapter: command`"),
        ("name: x\nadapter: command\n" + CHAIN, "demo.yaml", "command needs the program"),
        ("name: x\nname: y\n" + CHAIN, "demo.yaml:2", "second time"),
        ("name: x\n", "demo.yaml", "`chain.walltime` is required and missing"),
        ("", "demo.yaml", "the file is empty"),
        ("# only a comment\n", "demo.yaml", "the file is empty"),
        ("name: x\n\tconfig: {}\n", "demo.yaml:2", "not YAML"),
        ("name: x\nmodule: '???'\n" + CHAIN, "demo.yaml:2", "`???` is no value"),
        ("name: x\nconfig: {a: ['???']}\n" + CHAIN, "demo.yaml:2", "`???` is no value"),
        ("base: gone.yaml\n", "demo.yaml:1", "no such file"),
    ],
)
def test_bad_specs_are_refused_with_place_and_advice(write_spec: WriteSpec, text: str, place: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write_spec(text))
    assert str(caught.value).startswith(f"experiments/{place}")
    assert words in str(caught.value)


def test_every_problem_is_named_at_once(write_spec: WriteSpec) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write_spec("nam: x\nchain: {links: '2', waltime: \"01:00:00\"}\n"))
    assert len(str(caught.value).splitlines()) == 3


def test_a_spec_builds_on_another(write_spec: WriteSpec, project: Path) -> None:
    write_spec("base: demo.yaml\nname: longer\nconfig:\n  max_steps: 9\n", "longer.yaml")
    spec = load_spec(write_spec("base: longer.yaml\nname: longest\n", "longest.yaml"))
    assert spec.name == "longest"
    assert spec.config["max_steps"] == 9
    assert spec.config["step_seconds"] == 0.01
    assert str(spec.document.marks["config.max_steps"]) == "experiments/longer.yaml:4"
    assert str(spec.document.marks["chain.links"]) == "experiments/demo.yaml:9"
    assert [source.path.name for source in spec.sources] == ["longest.yaml", "longer.yaml", "demo.yaml"]


def test_a_circle_of_bases_is_refused(write_spec: WriteSpec) -> None:
    write_spec("base: b.yaml\nname: a\n", "a.yaml")
    with pytest.raises(SpecError, match=r"circle: b\.yaml -> a\.yaml -> b\.yaml"):
        load_spec(write_spec("base: a.yaml\nname: b\n", "b.yaml"))


def test_overrides_are_checked_with_the_same_care(project: Path) -> None:
    path = Path("experiments/demo.yaml")
    spec = load_spec(path, ["chain.links=3", "chain.walltime=01:00:00", "config.optimizer.lr=1e-3", "config.seed=7"])
    assert (spec.chain.links, spec.chain.walltime_seconds) == (3, 3600)
    assert spec.config["optimizer"] == {"lr": 0.001}
    assert str(spec.document.marks["config.seed"]) == "--set"
    cases = [
        ("chain.link=3", "--set: unknown key `chain.link`: did you mean `chain.links`?"),
        ("chain.links=many", "--set: chain.links: expected a whole number"),
        ("chain.walltime=1h", '--set: chain.walltime: expected "HH:MM:SS"'),
        ("slurm.partition=p", "it belongs in the site profile"),
        ("base=other.yaml", "chosen in the file"),
    ]
    for assignment, words in cases:
        with pytest.raises(SpecError) as caught:
            load_spec(path, [assignment])
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["chain.walltime=02:00:00"], "longer than site `here` allows (max_walltime 01:00:00)"),
        (["chain.walltime=00:00:04"], "leaves no time to train"),
        (["chain.first_walltime=00:00:04"], "chain.first_walltime: 00:00:04 leaves no time"),
        (["resources.nodes=2"], "2 nodes on the local site"),
    ],
)
def test_a_spec_must_fit_its_site(project: Path, overrides: list[str], words: str) -> None:
    site = load_profile(SiteChoice(project / "site_profiles" / "here.yaml", "--site"), project).site
    check_against_site(load_spec(Path("experiments/demo.yaml")), site)
    with pytest.raises(SpecError) as caught:
        check_against_site(load_spec(Path("experiments/demo.yaml"), overrides), site)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("text", "seconds"), [("00:00:30", 30), ("04:00:00", 14400), ("1-00:00:00", 86400)])
def test_wall_times(text: str, seconds: int) -> None:
    assert walltime_seconds(text) == seconds
    assert walltime_text(seconds) == text


@pytest.mark.parametrize("text", ["4", "04:00", "4:00:00", "00:60:00", "1-4:00:00", " 04:00:00", "04:00:00\n"])
def test_other_spellings_of_wall_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        walltime_seconds(text)
