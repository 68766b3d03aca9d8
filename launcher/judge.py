"""What follows for one link from all that is known of it. Pure: reconcile.py gathers, this decides.

Order of belief: the link's own exit record; a job that the queue shows; its absence, which needs two looks apart. A
queue that could not be asked changes nothing but the word "unknown".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.events import Beacon, ExitRecord
from launcher.records import LinkOutcome, LinkState
from launcher.scheduler.base import Job, JobEnd, JobState
from launcher.store import LinkRow

_OUTCOME_OF_WORD = {
    "TIMEOUT": LinkOutcome.TIMED_OUT,
    "DEADLINE": LinkOutcome.TIMED_OUT,
    "CANCELLED": LinkOutcome.CANCELLED,
    "SUPERVISOR_GONE": LinkOutcome.LOST,
}


@dataclass(frozen=True)
class Evidence:
    """All that is known of one link at one moment."""

    now: float  # unix seconds
    looks_apart: float  # seconds between two looks before absence counts
    queue_error: str  # why the queue could not be asked; empty when it was, or was not due
    jobs: tuple[Job, ...] | None  # jobs with the run's token and this link's number; None: the queue was not asked
    record: ExitRecord | None
    beacon: Beacon | None
    end: JobEnd | None  # of a job that the queue shows as ended, or that is absent
    submitter_alive: bool | None  # the launcher, or its sbatch; None: not asked, or cannot be told from here


@dataclass(frozen=True)
class Judgement:
    """The link as it is known from now on, and what a person should hear of it."""

    link: LinkRow
    notes: tuple[str, ...] = ()


def choose_job(jobs: Sequence[Job], job_id: str | None) -> Job | None:
    """The job that is this link's: the one recorded, else a live one, else the first submitted."""
    if not jobs:
        return None
    return min(jobs, key=lambda job: (job.job_id != job_id, not job.live, len(job.job_id), job.job_id))


def judge(link: LinkRow, seen: Evidence) -> Judgement:
    """What is known of `link` after this look."""
    adopted: tuple[str, ...] = ()
    job = choose_job(seen.jobs or (), link.job_id)
    if link.state is LinkState.REFUSED and seen.record is None and (job is None or not job.live):
        return Judgement(link)  # Slurm keeps a FAILED record of a job that it refused; it never was one
    known = job.job_id if job else seen.record.job_id if seen.record else seen.beacon.job_id if seen.beacon else None
    if link.job_id is None and known is not None:
        link = replace(link, job_id=known, state=LinkState.QUEUED, detail="")
        adopted = (f"link {link.number} of {link.run_id}: adopted job {known}, found by the run's token",)
    if len({job.job_id for job in seen.jobs or ()}) > 1:
        twins = ", ".join(other.job_id for other in seen.jobs or () if other.job_id != link.job_id)
        adopted += (
            f"link {link.number} of {link.run_id} has a second job ({twins}); the run's lock keeps it from work",
        )
    if seen.record is not None and (job is None or not job.live):
        link = _recorded(link, seen.record, job)
    elif job is not None:
        link = _in_queue(link, job, seen)
    elif seen.queue_error:
        link = _not_asked(link, seen)
    elif seen.jobs is not None:
        link = _absent(link, seen)
    return Judgement(link, adopted)


def _ended(link: LinkRow, outcome: LinkOutcome, detail: str) -> LinkRow:
    return replace(link, state=LinkState.ENDED, outcome=outcome, detail=detail, absent_since=None)


def _recorded(link: LinkRow, record: ExitRecord, job: Job | None) -> LinkRow:
    """The exit record's outcome. "Cancelled" only means that SIGTERM came; the scheduler's word says by what."""
    outcome, detail, word = record.outcome, record.detail, job.word.split()[0] if job else ""
    if outcome is LinkOutcome.CANCELLED and word not in ("", "CANCELLED", "COMPLETED", "FAILED"):
        return _ended(link, _OUTCOME_OF_WORD.get(word, LinkOutcome.CRASHED), f"{word}; {detail}")
    return _ended(link, outcome, detail)


def _in_queue(link: LinkRow, job: Job, seen: Evidence) -> LinkRow:
    link = replace(link, job_id=job.job_id)
    if job.state is not JobState.ENDED:
        state = {
            JobState.PENDING: LinkState.QUEUED,
            JobState.RUNNING: LinkState.RUNNING,
            JobState.COMPLETING: LinkState.RUNNING,
        }.get(job.state, LinkState.UNKNOWN)
        detail = job.reason if job.state in (JobState.PENDING, JobState.RUNNING) else job.word.lower()
        return replace(link, state=state, outcome=None, detail=detail, absent_since=None)
    word = job.word.split()[0]
    how = f"{word}, exit code {seen.end.exit_code}, signal {seen.end.signal}" if seen.end else word
    if word == "COMPLETED":  # then its exit record is on the way: a file server may show it late
        since = link.absent_since or seen.now
        if seen.now - since < seen.looks_apart:
            return replace(link, state=LinkState.ENDED, detail="waiting for its exit record", absent_since=since)
        return _ended(link, LinkOutcome.LOST, f"{how}, but it left no exit record")
    return _ended(link, _OUTCOME_OF_WORD.get(word, LinkOutcome.CRASHED), how)


def _not_asked(link: LinkRow, seen: Evidence) -> LinkRow:
    if link.state in (LinkState.QUEUED, LinkState.RUNNING):
        return replace(link, state=LinkState.UNKNOWN, detail=f"was {link.state}; {seen.queue_error}")
    return link


def _absent(link: LinkRow, seen: Evidence) -> LinkRow:
    """The queue answered and shows no such job."""
    if link.state in (LinkState.ENDED, LinkState.REFUSED) and link.outcome is not None:
        return link
    if link.state is LinkState.REFUSED:
        return link
    if seen.submitter_alive:
        return link  # it is being submitted at this moment, or its supervisor is about to be started
    since = link.absent_since or seen.now
    again = seen.now - since >= seen.looks_apart and link.absent_since is not None
    if link.job_id is None:
        if again and seen.submitter_alive is False:
            return replace(
                link,
                state=LinkState.REFUSED,
                detail="the launcher ended before it was submitted: two looks apart found no job, and no sbatch runs",
                absent_since=since,
            )
        where = "" if seen.submitter_alive is False else " (it was submitted from another machine)"
        detail = f"no job with the run's token is in the queue{where}"
        return replace(link, state=LinkState.UNSURE, detail=detail, absent_since=since)
    if not again:
        return replace(link, state=LinkState.UNKNOWN, detail="not in the queue; no exit record yet", absent_since=since)
    if seen.end is not None:
        word = seen.end.word
        return _ended(link, _OUTCOME_OF_WORD.get(word, LinkOutcome.CRASHED), f"{word}, exit code {seen.end.exit_code}")
    if seen.submitter_alive is False and seen.beacon is None:
        return _ended(link, LinkOutcome.LOST, "never started: the launcher ended before it started the supervisor")
    return _ended(link, LinkOutcome.LOST, "no exit record, and the scheduler no longer knows the job")


def is_open(link: LinkRow) -> bool:
    """Whether anything more can become known of a link."""
    return link.state is not LinkState.REFUSED and (link.state is not LinkState.ENDED or link.outcome is None)
