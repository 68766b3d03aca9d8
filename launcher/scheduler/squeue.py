"""Reading what squeue, scontrol and sbatch print. Pure; the text form, since the JSON changes with each release."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from launcher.scheduler.base import Job, JobEnd, JobState

# Name and comment last: they alone may hold the separator. %A id, %T state, %r reason, %l time limit, %N nodes.
FORMAT = "%A|%T|%r|%l|%N|%j|%k"
FIELDS = 7

_PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_RUNNING = {"RUNNING", "CONFIGURING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"}
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
_TAG = re.compile(r"(?P<token>[0-9a-f]{8}) link=(?P<link>[0-9]+)\b")

# Reasons that no waiting cures: somebody must act (launcher_facts 4.6).
STUCK_REASONS = (
    "DependencyNeverSatisfied",
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "BadConstraints",
    "JobHeldAdmin",
    "JobHeldUser",
    "launch_failed_requeued_held",
    "launch failed requeued held",
)


def job_state(word: str) -> JobState:
    """Our word for Slurm's; one that we do not know is OTHER, which nothing takes for an end."""
    first = word.split()[0].rstrip("+") if word.split() else ""
    if first == "COMPLETING":
        return JobState.COMPLETING
    if first in _PENDING:
        return JobState.PENDING
    if first in _RUNNING:
        return JobState.RUNNING
    return JobState.ENDED if first in _ENDED else JobState.OTHER


def parse_queue(text: str) -> tuple[Job, ...]:
    """The jobs in squeue's output (FORMAT). A line that is not of that shape is some other program's, and left out."""
    jobs = []
    for line in text.splitlines():
        fields = line.split("|", FIELDS - 1)
        if len(fields) != FIELDS or not fields[0].isdigit():
            continue
        job_id, word, reason, limit, nodes, name, comment = fields
        tag = _TAG.search(comment)
        token = tag["token"] if tag else None
        if token is not None and not name.endswith(f".{token}"):
            token = None  # somebody else's job that only mentions ours: never cancelled, never adopted
        waits = "" if reason in ("None", "") else reason
        link = int(tag["link"]) if tag and token else None
        jobs.append(Job(job_id, link, token, job_state(word), word, waits, limit, nodes))
    return tuple(jobs)


def parse_job(record: str) -> JobEnd | None:
    """How a job ended, from a line of `scontrol -o show job`; None while it has not."""
    values = dict(re.findall(r"(?:^| )(JobState|ExitCode)=(\S+)", record))
    word = values.get("JobState", "")
    if job_state(word) is not JobState.ENDED:
        return None
    code, _, number = values.get("ExitCode", "0:0").partition(":")
    return JobEnd(word, int(code), int(number or 0))


class Refusal(Enum):
    """What a failing sbatch lets us conclude."""

    REFUSED = "refused"  # the controller, or sbatch itself, said no
    UNSURE = "unsure"  # the answer was lost on the way


# These failed before anything was sent, or were the controller's own no. All else may have been lost after acceptance:
# a "Socket timed out" is known to come with a job that runs (slurm_facts 5).
_NOT_SENT = ("Unable to contact slurm controller (connect failure)", "Munge encode failed", "Unable to open file")
_LOST = ("Socket timed out", "Unable to contact", "Zero Bytes", "Unexpected message", "Message receive", "Connection")


def judge_refusal(stderr: str) -> Refusal:
    """Whether a non-zero sbatch means that no job exists."""
    if any(text in stderr for text in _NOT_SENT):
        return Refusal.REFUSED
    if any(text in stderr for text in _LOST):
        return Refusal.UNSURE
    said_no = "Batch job submission failed:" in stderr or "sbatch: fatal:" in stderr or "unrecognized option" in stderr
    return Refusal.REFUSED if said_no else Refusal.UNSURE


def of_token(jobs: Iterable[Job], token: str | None) -> tuple[Job, ...]:
    """The jobs that carry this run's token; with None, any run's."""
    return tuple(job for job in jobs if job.token is not None and token in (None, job.token))
