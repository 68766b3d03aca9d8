"""From spec, site and the trainer's answer to a plan: everything decided, nothing written, nothing submitted."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.adapters.base import CheckedConfig, TrainerFacts, adapter_for
from launcher.errors import SpecError
from launcher.origins import Origin, origins
from launcher.profile import Profile
from launcher.records import Chain, Resources, RunPaths, RunPlan
from launcher.snapshot import SourceTree, is_made, snapshot_path
from launcher.spec import Spec
from launcher.yaml_marks import dump

DRYRUN = "DRYRUN"


@dataclass(frozen=True)
class Identity:
    """What tells one launch from every other."""

    run_id: str
    token: str


@dataclass(frozen=True)
class Launch:
    """A plan with all that is shown before it is carried out and recorded when it is."""

    plan: RunPlan
    spec: Spec
    profile: Profile
    facts: TrainerFacts
    tree: SourceTree
    resolved_text: str  # resolved.yaml
    origins: tuple[Origin, ...]
    snapshot_made: bool  # the snapshot was there already


def new_identity(name: str, now: float) -> Identity:
    """A fresh run id `<name>-<yyyymmdd>-<xxxx>` and token."""
    day = time.strftime("%Y%m%d", time.localtime(now))
    return Identity(f"{name}-{day}-{secrets.token_hex(2)}", secrets.token_hex(4))


DRYRUN_IDENTITY = Identity(DRYRUN, DRYRUN)


def check_config(spec: Spec, profile: Profile, git_top: Path) -> CheckedConfig:
    """The trainer's answer to the spec's config.

    Raises:
        SpecError: the trainer refuses it; each problem with the file and line of its key.
        PreflightError: the trainer could not be asked.
    """
    checked = adapter_for(spec.adapter).check(spec, profile.site, git_top)
    if checked.problems:
        lines = []
        for problem in checked.problems:
            key = f"config.{problem.key}" if problem.key else "config"
            mark = spec.document.mark(key)
            place = str(mark) if mark else spec.path.name
            message = problem.message.removeprefix(f"{problem.key}: ")
            hint = f": did you mean `config.{problem.nearest}`?" if problem.nearest else ""
            if problem.nearest and "did you mean" in message:
                hint = ""
            lines.append(f"{place}: {key}: {message}{hint}")
        raise SpecError("\n".join(lines))
    return checked


def make_launch(spec: Spec, profile: Profile, checked: CheckedConfig, tree: SourceTree, identity: Identity) -> Launch:
    """The plan of one launch. Pure but for a look whether the snapshot is there."""
    site = profile.site
    paths = RunPaths(site.work_root / "runs" / identity.run_id)
    snapshot = snapshot_path(site.work_root, tree.sha256)
    resolved_text = dump(checked.resolved)
    assert checked.facts is not None  # held by check_config
    plan = RunPlan(
        run_id=identity.run_id,
        token=identity.token,
        name=spec.name,
        paths=paths,
        site=site,
        chain=site.granted(spec.chain),
        resources=spec.resources,
        command=adapter_for(spec.adapter).command(spec, site, paths.root),
        target_step=checked.facts.target_step,
        snapshot_sha256=tree.sha256,
        snapshot=snapshot,
        config_sha256=hashlib.sha256(resolved_text.encode()).hexdigest(),
    )
    return Launch(
        plan=plan,
        spec=spec,
        profile=profile,
        facts=checked.facts,
        tree=tree,
        resolved_text=resolved_text,
        origins=origins(spec, profile, checked),
        snapshot_made=is_made(snapshot),
    )


def gpu_hours(chain: Chain, resources: Resources) -> float:
    """GPU hours that the chain takes if every link runs to its wall time."""
    seconds = sum(chain.walltime(number) for number in range(1, chain.links + 1))
    return seconds / 3600 * resources.nodes * resources.gpus_per_node
