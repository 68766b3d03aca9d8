"""Real runs of the fake trainer for the tests: a work root, a snapshot, a run directory and its plan."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.reconcile import reconcile
from launcher.records import (
    SNAPSHOT_MARKER,
    Backend,
    Chain,
    Resources,
    RunPaths,
    RunPlan,
    Site,
    SlurmOptions,
)
from launcher.render import copy_agent, render_link
from launcher.scheduler.base import scheduler_for
from launcher.status import RunStatus, read_status
from launcher.store import RunRow, Store

TRAINER = Path(__file__).parent / "fake_trainer"


def make_plan(
    work_root: Path,
    backend: Backend = Backend.LOCAL,
    *,
    name: str = "demo",
    links: int = 3,
    walltime: int = 60,
    save_margin: int = 5,
    max_steps: int = 40,
    resources: Resources | None = None,
    setup: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> RunPlan:
    """A plan whose run directory and snapshot are in place, as the front of the launcher leaves them."""
    snapshot = work_root / "snapshots" / ("ab" * 32)
    if not snapshot.exists():
        snapshot.mkdir(parents=True)
        shutil.copytree(TRAINER, snapshot / "fake_trainer", ignore=shutil.ignore_patterns("__pycache__"))
        (snapshot / SNAPSHOT_MARKER).write_text("ab" * 32 + "\n")
    token = secrets.token_hex(4)
    run_id = f"{name}-20260101-{token[:4]}"
    paths = RunPaths(work_root / "runs" / run_id)
    site = Site(
        name="test",
        backend=backend,
        python=sys.executable,
        work_root=work_root,
        max_walltime_seconds=86400,
        save_margin_seconds=save_margin,
        lock_stale_seconds=20,
        accept_interval_seconds=0,
        poll_seconds=0,
        smoke="none",
        setup=setup,
        env=env or {},
        slurm=SlurmOptions(),
    )
    plan = RunPlan(
        run_id=run_id,
        token=token,
        name=name,
        paths=paths,
        site=site,
        chain=Chain(links, walltime, walltime),
        resources=resources or Resources(),
        command=(sys.executable, "-m", "fake_trainer", "train", str(paths.resolved)),
        target_step=max_steps,
        snapshot_sha256="ab" * 32,
        snapshot=snapshot,
        config_sha256="",
    )
    for folder in (paths.links, paths.events, paths.logs, paths.checkpoints, paths.accepted):
        folder.mkdir(parents=True)
    copy_agent(paths.links)
    for number in range(1, links + 1):
        paths.script(number).write_text(render_link(plan, number))
    paths.resolved.write_text(json.dumps(trainer_config(max_steps, config or {})))
    return plan


def trainer_config(max_steps: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fake trainer's whole config with these changes."""
    sys.path.insert(0, str(TRAINER.parent))
    try:
        from fake_trainer.__main__ import DEFAULTS
    finally:
        sys.path.pop(0)
    config: dict[str, Any] = json.loads(json.dumps(DEFAULTS))
    config["max_steps"] = max_steps
    config["target"]["path"] = str(TRAINER / "__main__.py")
    for key, value in changes.items():
        if isinstance(value, Mapping):
            config[key].update(value)
        else:
            config[key] = value
    return config


def remember(plan: RunPlan, store: Store) -> RunRow:
    """Put the run into the database, as `launch` does before it submits."""
    store.add_run(plan, Path("spec.yaml"), time.time())
    return store.find_run(plan.run_id)


def wait_until(
    run: RunRow, store: Store, true: Callable[[RunStatus], bool], seconds: float, pause: float = 0.2
) -> RunStatus:
    """Reconcile until `true` of the status; fails with the status when it takes longer."""
    end = time.monotonic() + seconds
    while True:
        reconcile(store, run, force=True, scheduler=scheduler_for(run.backend, run.run_dir.parent.parent))
        status = read_status(run, store, time.time())
        if true(status):
            return status
        assert time.monotonic() < end, f"not within {seconds} s: {status}"
        time.sleep(pause)


def outcomes(status: RunStatus) -> list[str]:
    """The outcome of each link, by number."""
    return [str(link.outcome or link.state) for link in status.links]


def all_ended(status: RunStatus) -> bool:
    return len(status.links) > 0 and all(link.outcome is not None for link in status.links)


def steps_made(plan: RunPlan) -> list[tuple[int, int]]:
    """(link, step) of each line of metrics.jsonl."""
    lines = [json.loads(line) for line in plan.paths.metrics.read_text().splitlines()]
    return [(line["link"], line["step"]) for line in lines]
