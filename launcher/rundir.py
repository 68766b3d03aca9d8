"""Makes a run directory: whole under its final name, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.errors import LockHeld, PreflightError
from launcher.plan import Launch
from launcher.provenance import Provenance
from launcher.records import RunPaths
from launcher.render import copy_agent, render_link

FOLDERS = ("links", "events", "logs", "checkpoints", "accepted")


def run_record(launch: Launch, provenance: Provenance, created: float) -> dict[str, Any]:
    """The content of run.json: identity, parent, and where everything came from."""
    plan, facts, code = launch.plan, launch.facts, provenance.code
    return {
        "version": 1,
        "run_id": plan.run_id,
        "token": plan.token,
        "name": plan.name,
        "created": created,
        "parent": None,
        "change": None,
        "spec": {"path": str(launch.spec.path), "bases": [str(source.path) for source in launch.spec.sources[1:]]},
        "site": {
            "name": plan.site.name,
            "backend": plan.site.backend.value,
            "python": plan.site.python,
            "accept_interval_seconds": plan.site.accept_interval_seconds,
            "smoke": plan.site.smoke,
        },
        "adapter": launch.spec.adapter.value,
        "command": list(plan.command),
        "chain": asdict(plan.chain),
        "resources": asdict(plan.resources),
        "target_step": plan.target_step,
        "config_sha256": plan.config_sha256,
        "snapshot": {
            "path": str(plan.snapshot),
            "sha256": plan.snapshot_sha256,
            "files": len(launch.tree.entries),
            "bytes": launch.tree.size,
        },
        "code": {
            "git_top": str(provenance.git_top),
            "revision": code.commit,
            "dirty": bool(code.diff),
            "diff": "code.diff" if code.diff else None,
            "submodules": dict(code.submodules),
        },
        "target": asdict(facts.target) if facts.target else None,
        "draft": asdict(facts.draft) if facts.draft else None,
        "data": {"paths": list(facts.data_paths), "revision": facts.data_revision},
        "seed": facts.seed,
        "versions": {"launcher": dict(provenance.versions), "trainer": dict(facts.versions)},
        "output_directory": str(plan.paths.root),
        "host": provenance.host,
        "user": provenance.user,
        "argv": list(provenance.argv),
        "working_directory": str(provenance.working_directory),
        "origins": {origin.key: {"value": origin.value, "source": origin.source} for origin in launch.origins},
    }


def create_run_dir(launch: Launch, provenance: Provenance) -> Path:
    """Write the run directory of a launch and rename it into place; its path.

    Raises:
        LockHeld: a run of this id is there already.
        PreflightError: the disk refused.
    """
    plan = launch.plan
    final = plan.paths.root
    making = RunPaths(final.parent / f".making-{plan.run_id}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        making.root.mkdir(mode=0o755)
    except FileExistsError:
        raise LockHeld(f"another launch is making {final}: launch again, the new run gets another id") from None
    except OSError as error:
        raise _refused(final, error) from None
    try:
        if final.exists():
            raise LockHeld(f"{final} exists already: launch again, the new run gets another id")
        _fill(making, launch, provenance)
        os.rename(making.root, final)
        _sync(final.parent)
    except OSError as error:
        raise _refused(final, error) from None
    finally:
        shutil.rmtree(making.root, ignore_errors=True)
    return final


def _refused(final: Path, error: OSError) -> PreflightError:
    return PreflightError(f"the run directory {final} cannot be made: {error.strerror}: {error.filename}")


def _fill(making: RunPaths, launch: Launch, provenance: Provenance) -> None:
    for folder in FOLDERS:
        (making.root / folder).mkdir()
    first, *bases = launch.spec.sources
    files = {"spec.yaml": first.text, "site.yaml": launch.profile.text, "resolved.yaml": launch.resolved_text}
    files |= {f"spec.base-{number}.yaml": base.text for number, base in enumerate(bases, 1)}
    record = run_record(launch, provenance, time.time())
    files["run.json"] = json.dumps(record, indent=1, allow_nan=True) + "\n"
    if provenance.code.diff:
        files["code.diff"] = provenance.code.diff
    for name, text in files.items():
        _write(making.root / name, text)
    for number in range(1, launch.plan.chain.links + 1):
        script = making.script(number)
        _write(script, render_link(launch.plan, number))
        script.chmod(0o755)
    copy_agent(making.links)
    for folder, _, names in os.walk(making.links / "agent"):
        for name in (*names, "."):
            _sync(Path(folder) / name)
    for folder in (*FOLDERS, "."):
        _sync(making.root / folder)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
