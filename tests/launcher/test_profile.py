"""A site profile: which one is meant, and every key of it checked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.errors import LauncherError, PreflightError, SpecError, UsageError
from launcher.profile import BUILTIN_LOCAL, SiteChoice, choose_site, default_notice, load_profile, preflight
from tests.launcher.small_project import SITE

REPOSITORY = Path(__file__).resolve().parents[2]


def load(project: Path, text: str):
    path = project / "site_profiles" / "here.yaml"
    path.write_text(text)
    return load_profile(SiteChoice(path, "--site"), project)


def test_a_profile_becomes_a_record(project: Path) -> None:
    site = load(project, SITE).site
    assert (site.name, site.backend, site.max_walltime_seconds) == ("here", "local", 3600)
    assert site.python == sys.executable
    assert site.work_root == project / "work"
    assert site.smoke == "none"


def test_places_are_relative_to_the_git_top_and_links_are_kept(project: Path) -> None:
    (project / "venv").symlink_to(Path(sys.executable).parent)
    name = Path(sys.executable).name
    site = load(project, SITE + f"python: venv/{name}\nwork_root: ../elsewhere\n").site
    assert site.python == str(project / "venv" / name)
    assert site.work_root == project.parent / "elsewhere"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("nme: x\n", "here.yaml:8: unknown key `nme`: did you mean `name`?"),
        ("chain: {links: 2}\n", "here.yaml:8: unknown key `chain`: it belongs in the experiment spec"),
        ("resources: {}\n", "it belongs in the experiment spec"),
        ("nodes: 2\n", "did you mean `resources.nodes`, in the experiment spec?"),
        ("slurm: {partion: p}\n", "unknown key `slurm.partion`: did you mean `slurm.partition`?"),
        ("slurm: {gpu_option: gpus}\n", "expected gpus-per-node or gres, got the text"),
        ("slurm: {partition: p}\n", "this profile has `backend: local`"),
        ("smoke: quick\n", "smoke: expected none"),
        ("env: {A: 1}\n", "env.A: expected text, got `1`: quote it"),
        ("env: {A: '${HOME}'}\n", "is not interpolated"),
        ("env: {RANK: '1'}\n", "set by the launcher"),
        ("env: {'A B': '1'}\n", "not the name of an environment variable"),
        ("setup: module load x\n", "setup: expected a list"),
        ("setup: [1]\n", "setup[0]: expected text, got `1`: quote it"),
    ],
)
def test_bad_profiles_are_refused_with_place_and_advice(project: Path, extra: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(project, SITE + extra)
    assert "site_profiles/here.yaml:" in str(caught.value)
    assert words in str(caught.value)


def test_limits_and_quotes_of_a_profile(project: Path) -> None:
    with pytest.raises(SpecError, match="poll_seconds: 0: at least 1"):
        load(project, SITE.replace("poll_seconds: 1", "poll_seconds: 0"))
    with pytest.raises(SpecError, match="quote it"):
        load(project, SITE.replace('"01:00:00"', "01:00:00"))
    with pytest.raises(SpecError, match="max_walltime: `1:00:00`"):
        load(project, SITE.replace('"01:00:00"', "1:00:00"))


def test_a_setup_line_may_use_the_shell(project: Path) -> None:
    assert load(project, SITE + "setup:\n  - export X=${HOME}/bin\n").site.setup == ("export X=${HOME}/bin",)


@pytest.mark.parametrize("python", ["no/such/python", "no-such-python"])
def test_an_interpreter_that_is_not_there_stops_a_launch_and_not_a_look(project: Path, python: str) -> None:
    profile = load(project, SITE + f"python: {python}\n")
    with pytest.raises(PreflightError, match=r"here\.yaml:8: python: .*no.such.python is not an executable"):
        preflight(profile, None)


def test_a_slurm_site_needs_sbatch(project: Path) -> None:
    profile = load(project, SITE.replace("backend: local", "backend: slurm"))
    preflight(profile, "/usr/bin/sbatch")
    with pytest.raises(PreflightError, match="sbatch is not on PATH"):
        preflight(profile, None)


def test_the_site_is_chosen_by_flag_then_variable_then_default(project: Path) -> None:
    here = project / "site_profiles" / "here.yaml"
    (project / "other.yaml").write_text(SITE)
    assert choose_site(str(here), {"LAUNCH_SITE": "other.yaml"}, project, "/usr/bin/sbatch").path == here
    assert choose_site("here", {}, project, None).path == here
    assert choose_site(None, {"LAUNCH_SITE": "other.yaml"}, project, "/usr/bin/sbatch").path == Path("other.yaml")
    choice = choose_site(None, {}, project, None)
    assert (choice.path, choice.reason) == (None, "default")
    assert "RUNNING ON THIS MACHINE" in default_notice(choice)
    assert load_profile(choice, project).site.backend == "local"


@pytest.mark.parametrize(
    ("flag", "sbatch", "words"),
    [
        (None, "/usr/bin/sbatch", "this machine has Slurm"),
        ("nowhere", None, "site_profiles/ has here"),
        ("", None, "no site named"),
    ],
)
def test_no_site_is_guessed_where_that_could_surprise(
    project: Path, flag: str | None, sbatch: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        choose_site(flag, {}, project, sbatch)
    assert caught.value.exit_code == 2


def test_the_built_in_local_site_is_the_one_that_is_shipped() -> None:
    assert (REPOSITORY / "site_profiles" / "local.yaml").read_text() == BUILTIN_LOCAL


@pytest.mark.parametrize("path", sorted((REPOSITORY / "site_profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_that_is_shipped_is_valid(path: Path) -> None:
    try:
        profile = load_profile(SiteChoice(path, "--site"), REPOSITORY)
    except LauncherError as error:
        pytest.fail(str(error))
    assert profile.site.name == path.stem
