"""A trainer that checks its own config: `python -m <module> check --json -` under the site's python (docs/contract.md).

The trainer is asked in a subprocess and never imported, so the launcher needs no torch and cannot disagree with the
trainer about what a key means.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.adapters.base import Artifact, CheckedConfig, ConfigProblem, TrainerFacts
from launcher.errors import PreflightError
from launcher.records import RunPaths, Site
from launcher.spec import Spec

TIMEOUT_SECONDS = 300  # fingerprints of large targets are hashed here


class DflashTrainAdapter:
    """Adapter `dflash_train`: dflash_train itself, or another module that serves the same two commands."""

    def check(self, spec: Spec, site: Site, git_top: Path) -> CheckedConfig:
        """Ask the module about the spec's config, in the git top and with the site's environment."""
        command = [site.python, "-m", spec.module, "check", "--json", "-"]
        shown = " ".join(command)
        try:
            done = subprocess.run(
                command,
                input=json.dumps(spec.config).encode(),
                capture_output=True,
                cwd=git_top,
                env={**os.environ, **site.env, "PYTHONDONTWRITEBYTECODE": "1"},
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except OSError as error:
            raise PreflightError(f"the trainer cannot be asked: {site.python}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise PreflightError(
                f"the trainer did not answer within {TIMEOUT_SECONDS} s: `{shown}` in {git_top}"
            ) from None
        try:
            answer = json.loads(done.stdout)
            if bool(answer["ok"]) == bool(answer["errors"]) or done.returncode != (0 if answer["ok"] else 3):
                raise ValueError(f"ok={answer['ok']}, {len(answer['errors'])} errors")
            return _read(answer)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            words = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
            reason = words[-1].strip() if words else f"{type(error).__name__}: {error}"
            raise PreflightError(
                f"`{shown}` in {git_top} gave no answer that docs/contract.md knows (exit {done.returncode}): {reason}"
            ) from None

    def command(self, spec: Spec, site: Site, run_dir: Path) -> tuple[str, ...]:
        """`python -u -m <module> train <run>/resolved.yaml`."""
        return (site.python, "-u", "-m", spec.module, "train", str(RunPaths(run_dir).resolved))


def _read(answer: Mapping[str, Any]) -> CheckedConfig:
    """The trainer's answer as a record; KeyError, TypeError or ValueError where it is not as the contract says."""
    problems = tuple(ConfigProblem(e["key"] or "", str(e["message"]), e.get("nearest")) for e in answer["errors"])
    if problems:
        return CheckedConfig(answer.get("resolved") or {}, answer.get("origins") or {}, None, problems)
    facts: Mapping[str, Any] = answer["facts"]
    return CheckedConfig(
        resolved=dict(answer["resolved"]),
        origins=dict(answer["origins"]),
        facts=TrainerFacts(
            target_step=int(facts["target_step"]),
            seed=facts["seed"],
            target=_artifact(facts["target"]),
            draft=_artifact(facts["draft"]),
            data_paths=tuple(facts["data"]["paths"]),
            data_revision=facts["data"]["revision"],
            versions=dict(facts["versions"]),
        ),
    )


def _artifact(value: Mapping[str, str] | None) -> Artifact | None:
    return None if value is None else Artifact(value["path"], value["fingerprint"])
