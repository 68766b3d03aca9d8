"""A trainer is asked about its config as docs/contract.md says, and everything else it does is a clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.adapters.base import adapter_for
from launcher.errors import PreflightError, SpecError
from launcher.plan import check_config
from launcher.profile import Profile, SiteChoice, load_profile
from launcher.records import Site
from launcher.spec import Spec, load_spec


def profile(project: Path) -> Profile:
    return load_profile(SiteChoice(project / "site_profiles" / "here.yaml", "--site"), project)


def spec(*overrides: str) -> Spec:
    return load_spec(Path("experiments/demo.yaml"), overrides)


def test_the_trainer_resolves_the_config_and_states_its_facts(project: Path) -> None:
    checked = check_config(spec("config.seed=7"), profile(project), project)
    assert checked.resolved["optimizer"] == {"lr": 6e-4}
    assert checked.origins["seed"] == "given"
    assert checked.facts is not None
    assert (checked.facts.target_step, checked.facts.seed) == (6, 7)
    assert checked.facts.target is not None
    assert checked.facts.target.fingerprint.startswith("sha256:")


@pytest.mark.parametrize(
    ("lines", "place", "words"),
    [
        ("  optimiser: {lr: 1}\n", "demo.yaml:8", "'optimiser': did you mean `config.optimizer`?"),
        ("  optimizer:\n    lrr: 1\n", "demo.yaml:9", "did you mean `config.optimizer.lr`?"),
        ("  seed: x\n", "demo.yaml:8", "config.seed: expected int, got 'x'"),
        ("  target: {path: nowhere}\n", "demo.yaml:8", "no such file"),
    ],
)  # fmt: skip
def test_what_the_trainer_refuses_has_file_and_line(project: Path, lines: str, place: str, words: str) -> None:
    path = project / "experiments" / "demo.yaml"
    path.write_text(path.read_text().replace("chain:\n", lines + "chain:\n"))
    with pytest.raises(SpecError) as caught:
        check_config(spec(), profile(project), project)
    assert str(caught.value).startswith(f"experiments/{place}: ")
    assert words in str(caught.value)


def test_a_key_that_a_base_or_a_flag_set_is_named_there(project: Path) -> None:
    (project / "experiments" / "sub.yaml").write_text("base: demo.yaml\nname: sub\nconfig:\n  seed: x\n")
    with pytest.raises(SpecError, match=r"^experiments/sub\.yaml:4: config\.seed"):
        check_config(load_spec(Path("experiments/sub.yaml")), profile(project), project)
    with pytest.raises(SpecError, match=r"^--set: config\.max_steps"):
        check_config(spec("config.max_steps=0"), profile(project), project)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit('no licence')", "exit 1): no licence"),
        ("print('hello')", "gave no answer"),
        ("print('{}')", "KeyError"),
        (
            'print(\'{"ok": true, "errors": [], "resolved": {}, "origins": {}, "facts": {}}\')',
            "KeyError: 'target_step'",
        ),
        ('print(\'{"ok": false, "errors": []}\')', "ok=False"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
    ],
)
def test_a_trainer_that_does_not_answer_is_a_preflight_error(project: Path, program: str, words: str) -> None:
    (project / "odd_trainer.py").write_text(program + "\n")
    with pytest.raises(PreflightError) as caught:
        check_config(spec("module=odd_trainer"), profile(project), project)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_site_environment_reaches_the_trainer(project: Path) -> None:
    (project / "odd_trainer.py").write_text("import os\nraise SystemExit(os.environ['FROM_SITE'])\n")
    path = project / "site_profiles" / "here.yaml"
    path.write_text(path.read_text() + 'env: {FROM_SITE: "said by the site"}\n')
    with pytest.raises(PreflightError, match="said by the site"):
        check_config(spec("module=odd_trainer"), profile(project), project)


def site(project: Path) -> Site:
    return profile(project).site


def test_commands_of_a_task(project: Path) -> None:
    run = Path("/runs/x")
    asked = spec()
    assert adapter_for(asked.adapter).command(asked, site(project), run)[1:] == (
        *("-u", "-m", "fake_trainer", "train", "/runs/x/resolved.yaml"),
    )
    (project / "experiments" / "other.yaml").write_text(
        "name: other\nadapter: command\ntarget_step: 9\nchain: {walltime: '00:10:00'}\n"
        "command: ['{python}', train.py, '--config={config}', '--out={run_dir}', '{x}']\n"
    )
    other = load_spec(Path("experiments/other.yaml"))
    adapter = adapter_for(other.adapter)
    checked = adapter.check(other, site(project), project)
    assert checked.facts is not None
    assert checked.facts.target_step == 9
    assert adapter.command(other, site(project), run) == (
        *(site(project).python, "train.py", "--config=/runs/x/resolved.yaml", "--out=/runs/x", "{x}"),
    )
