"""Any program that keeps docs/contract.md: its config is not checked, its target step is in the spec."""

from __future__ import annotations

from pathlib import Path

from launcher.adapters.base import CheckedConfig, TrainerFacts
from launcher.records import RunPaths, Site
from launcher.spec import Spec


class CommandAdapter:
    """Adapter `command`."""

    def check(self, spec: Spec, site: Site, git_top: Path) -> CheckedConfig:
        """The config as it was given: the program checks it at its start."""
        assert spec.target_step is not None  # held by load_spec
        origins = {key.removeprefix("config."): "given" for key in spec.document.marks if key.startswith("config.")}
        return CheckedConfig(spec.config, origins, TrainerFacts(spec.target_step))

    def command(self, spec: Spec, site: Site, run_dir: Path) -> tuple[str, ...]:
        """The spec's command with {python}, {run_dir} and {config} filled in."""
        places = {"{python}": site.python, "{run_dir}": str(run_dir), "{config}": str(RunPaths(run_dir).resolved)}
        filled = []
        for argument in spec.command:
            for name, value in places.items():
                argument = argument.replace(name, value)
            filled.append(argument)
        return tuple(filled)
