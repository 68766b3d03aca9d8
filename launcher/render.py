"""The exact script of a link: #SBATCH lines by submitit's renderer, then a body of our own. Pure."""

from __future__ import annotations

from launcher.records import RunPlan


def render_link(plan: RunPlan, number: int) -> str:
    """The script of link `number`, the same for both backends.

    It holds no previous job's id (that is given on sbatch's command line), so every script is known before anything is
    submitted and a dry run prints it exactly.

    Raises:
        SpecError: a value that cannot stand in a script (a line break, an unknown sbatch parameter).
    """
    raise NotImplementedError


def submit_command(plan: RunPlan, number: int, previous: str | None) -> tuple[str, ...]:
    """The sbatch command line of link `number`, behind job `previous`."""
    raise NotImplementedError
