"""The exact script of a link: #SBATCH lines by submitit's renderer, then a body of our own. Pure.

The local backend runs the very same script; there the #SBATCH lines are comments.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import SpecError
from launcher.records import SNAPSHOT_MARKER, RunPlan

if TYPE_CHECKING:
    from launcher.scheduler.executor import LinkExecutor

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER_SIGNAL_LIMIT = 65535  # seconds that sbatch --signal may lead by


def render_link(plan: RunPlan, number: int) -> str:
    """The script of link `number`, the same for both backends.

    It holds no previous job's id (that is given on sbatch's command line), so every script is known before anything is
    submitted and a dry run prints it exactly.

    Raises:
        SpecError: a value that cannot stand in a script (a line break, an unknown sbatch parameter).
    """
    return link_executor(plan, number).script()


def submit_command(plan: RunPlan, number: int, previous: str | None) -> tuple[str, ...]:
    """The sbatch command line of link `number`, behind job `previous`."""
    return link_executor(plan, number, previous).command_line(plan.paths.script(number))


def copy_agent(links: Path) -> None:
    """Copy the link agent into a run's `links` folder: this run goes on with it, whatever is installed later."""
    source = Path(__file__).parent / "agent"
    shutil.copytree(source, links / "agent", ignore=shutil.ignore_patterns("__pycache__"))


def link_executor(plan: RunPlan, number: int, previous: str | None = None) -> LinkExecutor:
    """A fresh executor with the parameters of one link."""
    from launcher.scheduler.executor import LinkExecutor

    executor = LinkExecutor(plan.paths.links, _body(plan, number), previous)
    parameters = _parameters(plan, number)
    for key, value in {**parameters, **parameters["additional_parameters"]}.items():
        if isinstance(value, str) and not value.isprintable():
            raise SpecError(f"sbatch parameter {key}: {value!r} holds a line break or a control character; remove it")
    try:
        executor.update_parameters(**parameters)
    except (ValueError, AssertionError) as error:
        raise SpecError(f"sbatch parameters of link {number}: {error}") from error
    return executor


def _parameters(plan: RunPlan, number: int) -> dict[str, Any]:
    """submitit's parameters of a link. What submitit does not know goes to `additional_parameters`, unchecked by it."""
    slurm, resources, site = plan.site.slurm, plan.resources, plan.site
    lead = min(site.save_margin_seconds, USER_SIGNAL_LIMIT)
    additional: dict[str, Any] = {
        "output": str(plan.paths.logs / f"{number:04d}.%j.out"),
        "signal": f"B:USR1@{lead}",
        "no-requeue": True,
        "export": "NIL",
    }
    if slurm.reservation:
        additional["reservation"] = slurm.reservation
    if resources.memory:
        additional["mem"] = resources.memory
    parameters: dict[str, Any] = {
        "job_name": plan.job_name,
        "comment": f"{plan.run_id} {plan.token} link={number}",
        "time": -(-plan.chain.walltime(number) // 60),  # Slurm counts whole minutes
        "nodes": resources.nodes,
        "ntasks_per_node": resources.tasks_per_node,
        "cpus_per_task": resources.cpus_per_task,
        "dependency": "singleton",
        "stderr_to_stdout": True,
        "use_srun": False,
        "additional_parameters": additional,
    }
    options = {"partition": slurm.partition, "account": slurm.account, "qos": slurm.qos, "constraint": slurm.constraint}
    parameters |= {key: value for key, value in options.items() if value}
    if slurm.exclude:
        parameters["exclude"] = ",".join(slurm.exclude)
    if resources.gpus_per_node and slurm.gpu_option == "gres":
        parameters["gres"] = f"gpu:{resources.gpus_per_node}"
    elif resources.gpus_per_node:
        parameters["gpus_per_node"] = resources.gpus_per_node
    return parameters


def _body(plan: RunPlan, number: int) -> str:
    """The script below the #SBATCH lines: the environment, the setup lines, then the agent in place of the shell."""
    run = plan.paths.root
    more_python = plan.site.env.get("PYTHONPATH", "")
    exports = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # the snapshot is read-only, which does not stop root
        **plan.site.env,
        "PYTHONPATH": f"{plan.snapshot}:{more_python}" if more_python else str(plan.snapshot),
        "LAUNCH_RUN_DIR": str(run),
        "LAUNCH_LINK": str(number),
        "LAUNCH_TARGET_STEP": str(plan.target_step),
    }
    agent = shlex.join([plan.site.python, "-B", str(plan.paths.links / "agent")])
    options = [
        f"--walltime={plan.chain.walltime(number)}",
        f"--save-margin={plan.site.save_margin_seconds}",
        f"--lock-stale={plan.site.lock_stale_seconds}",
        f"--nodes={plan.resources.nodes}",
        f"--tasks-per-node={plan.resources.tasks_per_node}",
        f"--cpus-per-task={plan.resources.cpus_per_task}",
        f"--snapshot-marker={plan.snapshot / SNAPSHOT_MARKER}",
        f"--snapshot-sha256={plan.snapshot_sha256}",
    ]
    setup = []
    for line in plan.site.setup:
        # `set -e` does not see a failure inside `a && b`, so each line's status is looked at as well.
        setup += [f"setup_line={shlex.quote(line)}", line, "status=$?; [ $status -eq 0 ] || exit $status"]
    return "\n".join(
        [
            f"# Link {number} of {plan.chain.links} of run {plan.run_id}.",
            "set -euo pipefail",
            "# The signal that asks for a save may come before the agent can take it; then the deadline does its work.",
            "trap '' USR1",
            "# Nothing of the submitting shell travels with the job (--export=NIL), so what is needed is set here.",
            f"export PATH={PATH}",
            'if [ -z "${HOME:-}" ]; then unset HOME; export HOME=~; fi',
            "export SLURM_EXPORT_ENV=ALL",
            "LAUNCH_STARTED=$(date +%s); export LAUNCH_STARTED",
            *(f"export {name}={shlex.quote(value)}" for name, value in exports.items()),
            f"setup_line={shlex.quote(f'cd {plan.snapshot}')}",
            "setup_failed() {",
            "  status=$?",
            f'  {agent} --setup-failed="$status" --setup-line="$setup_line" --',
            '  exit "$status"',
            "}",
            "trap setup_failed EXIT",
            f"cd {shlex.quote(str(plan.snapshot))}",
            *(
                ["# The site's setup; module and conda scripts do not stand `set -u`.", "set +u", *setup]
                if setup
                else []
            ),
            "trap - EXIT",
            f"exec {agent} \\",
            *(f"  {shlex.quote(option)} \\" for option in options),
            f"  -- {shlex.join(plan.command)}",
            "",
        ]
    )
