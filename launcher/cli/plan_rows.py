"""What of a plan is shown before launching, as rows for a person and as JSON with stable keys."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from launcher.adapters.base import Artifact
from launcher.plan import Launch, gpu_hours
from launcher.records import Chain
from launcher.schema import walltime_text


def plan_rows(launch: Launch) -> list[tuple[str, str]]:
    """Name and value of each line of the plan."""
    plan, facts, resources = launch.plan, launch.facts, launch.plan.resources
    asked = [
        _count(resources.nodes, "node"),
        _count(resources.tasks_per_node, "task") + " a node",
        _count(resources.gpus_per_node, "GPU") + " a node",
        _count(resources.cpus_per_task, "CPU") + " a task",
    ]
    if resources.memory:
        asked.append(resources.memory)
    rows = [
        ("run", plan.run_id),
        ("site", f"{plan.site.name} ({plan.site.backend.value}), work root {plan.site.work_root}"),
        ("chain", _chain_text(plan.chain)),
        ("resources", ", ".join(asked)),
        ("GPU hours", f"at most {gpu_hours(plan.chain, resources):.1f}"),
        ("target step", str(plan.target_step)),
        ("snapshot", _snapshot_text(launch)),
        ("target", _artifact_text(facts.target)),
        ("draft", _artifact_text(facts.draft)),
        ("data", _data_text(launch)),
        ("seed", "not said" if facts.seed is None else str(facts.seed)),
        (
            "smoke",
            f"{plan.site.smoke}: no smoke run before the chain" if plan.site.smoke == "none" else plan.site.smoke,
        ),
    ]
    latest = time.time() + sum(plan.chain.walltime(number) for number in range(1, plan.chain.links + 1))
    rows.insert(
        3, ("ends", f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(latest))} at the latest if nothing queues")
    )
    return rows


def plan_json(launch: Launch) -> dict[str, Any]:
    """The plan with stable keys."""
    plan, facts = launch.plan, launch.facts
    return {
        "run_id": plan.run_id,
        "token": plan.token,
        "name": plan.name,
        "run_dir": str(plan.paths.root),
        "site": plan.site.name,
        "backend": plan.site.backend.value,
        "chain": asdict(plan.chain),
        "resources": asdict(plan.resources),
        "gpu_hours": gpu_hours(plan.chain, plan.resources),
        "target_step": plan.target_step,
        "command": list(plan.command),
        "config_sha256": plan.config_sha256,
        "snapshot": {
            "sha256": plan.snapshot_sha256,
            "path": str(plan.snapshot),
            "files": len(launch.tree.entries),
            "bytes": launch.tree.size,
            "new": not launch.snapshot_made,
        },
        "facts": asdict(facts),
        "smoke": plan.site.smoke,
    }


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _chain_text(chain: Chain) -> str:
    text = f"{_count(chain.links, 'link')} of {walltime_text(chain.walltime_seconds)}"
    if chain.first_walltime_seconds != chain.walltime_seconds:
        text += f", the first of {walltime_text(chain.first_walltime_seconds)}"
    return text


def _snapshot_text(launch: Launch) -> str:
    state = "reused" if launch.snapshot_made else "new"
    files = f"{len(launch.tree.entries)} files, {launch.tree.size / 1e6:.1f} MB"
    return f"{launch.plan.snapshot_sha256[:12]} ({state}; {files})"


def _artifact_text(artifact: Artifact | None) -> str:
    return "none" if artifact is None else f"{artifact.path} ({artifact.fingerprint[:19]})"


def _data_text(launch: Launch) -> str:
    facts = launch.facts
    revision = (facts.data_revision or "not said")[:19]
    return f"{', '.join(facts.data_paths) or 'no paths said'} ({revision})"
