"""What follows for a link from what is known of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.events import Beacon, ExitRecord
from launcher.judge import Evidence, choose_job, is_open, judge
from launcher.records import LinkOutcome, LinkState
from launcher.scheduler.base import Job, JobEnd, JobState
from launcher.store import LinkRow

QUEUED = LinkRow("r", 1, LinkState.QUEUED, "7", 0.0, None, "")
INTENDED = replace(QUEUED, state=LinkState.INTENDED, job_id=None)
NOTHING = Evidence(
    now=1000.0, looks_apart=90.0, queue_error="", jobs=(), record=None, beacon=None, end=None, submitter_alive=False
)


def job(word: str, state: JobState, job_id: str = "7", reason: str = "") -> Job:
    return Job(job_id, 1, "0badcafe", state, word, reason, "1:00", "n1")


def record(outcome: str) -> ExitRecord:
    return ExitRecord(1, "7", LinkOutcome(outcome), 0, 0, 20, 10, "its own words")


RUNNING = job("RUNNING", JobState.RUNNING)
PENDING = job("PENDING", JobState.PENDING, reason="Dependency")


@pytest.mark.parametrize(
    ("seen", "state", "outcome"),
    [
        ({"jobs": (PENDING,)}, "queued", None),
        ({"jobs": (RUNNING,)}, "running", None),
        ({"jobs": (job("COMPLETING", JobState.COMPLETING),)}, "running", None),
        ({"jobs": (job("EXPEDITING", JobState.OTHER),)}, "unknown", None),
        # The exit record is believed first, but not before the job is over.
        ({"jobs": (RUNNING,), "record": record("handed_over")}, "running", None),
        ({"jobs": (job("COMPLETED", JobState.ENDED),), "record": record("finished")}, "ended", "finished"),
        ({"jobs": (), "record": record("finished")}, "ended", "finished"),
        ({"jobs": None, "record": record("finished")}, "ended", "finished"),
        ({"jobs": None, "record": record("finished"), "queue_error": "down"}, "ended", "finished"),
        # What only ended it is the scheduler's to say.
        ({"jobs": (job("TIMEOUT", JobState.ENDED),), "record": record("cancelled")}, "ended", "timed_out"),
        ({"jobs": (job("NODE_FAIL", JobState.ENDED),), "record": record("cancelled")}, "ended", "crashed"),
        ({"jobs": (job("TIMEOUT", JobState.ENDED),), "record": record("finished")}, "ended", "finished"),
        # Without a record the scheduler's word is all there is.
        ({"jobs": (job("TIMEOUT", JobState.ENDED),)}, "ended", "timed_out"),
        ({"jobs": (job("CANCELLED by 0", JobState.ENDED),)}, "ended", "cancelled"),
        ({"jobs": (job("NODE_FAIL", JobState.ENDED),)}, "ended", "crashed"),
        ({"jobs": (job("SUPERVISOR_GONE", JobState.ENDED),)}, "ended", "lost"),
        ({"jobs": (job("COMPLETED", JobState.ENDED),)}, "ended", None),  # its record is on the way
        # Could not ask: nothing is dead.
        ({"jobs": None, "queue_error": "down"}, "unknown", None),
        ({"jobs": None}, "queued", None),
        # One look that does not find it proves nothing.
        ({"jobs": ()}, "unknown", None),
    ],
)
def test_a_link_with_a_job(seen: dict[str, Any], state: str, outcome: str | None) -> None:
    link = judge(QUEUED, replace(NOTHING, **seen)).link
    assert (link.state, link.outcome) == (state, outcome)
    assert link.job_id == "7"


def test_a_job_is_lost_only_after_two_looks_apart() -> None:
    first = judge(QUEUED, NOTHING).link
    assert (first.state, first.absent_since) == (LinkState.UNKNOWN, 1000.0)
    second = judge(first, replace(NOTHING, now=1060.0)).link
    assert second.state is LinkState.UNKNOWN
    third = judge(second, replace(NOTHING, now=1090.0)).link
    assert (third.state, third.outcome) == (LinkState.ENDED, LinkOutcome.LOST)
    assert judge(third, replace(NOTHING, now=2000.0)).link == third


def test_a_job_that_comes_back_is_not_lost() -> None:
    absent = judge(QUEUED, NOTHING).link
    back = judge(absent, replace(NOTHING, jobs=(RUNNING,))).link
    assert (back.state, back.absent_since) == (LinkState.RUNNING, None)


def test_a_purged_job_that_the_scheduler_still_describes_ended_so() -> None:
    absent = judge(QUEUED, NOTHING).link
    ended = judge(absent, replace(NOTHING, now=1100.0, end=JobEnd("TIMEOUT", 0, 9))).link
    assert (ended.outcome, ended.detail) == (LinkOutcome.TIMED_OUT, "TIMEOUT, exit code 0")


def test_a_completed_job_without_a_record_is_lost_in_the_end() -> None:
    completed = replace(NOTHING, jobs=(job("COMPLETED", JobState.ENDED),))
    waiting = judge(QUEUED, completed).link
    assert is_open(waiting)
    late = judge(waiting, replace(completed, now=1100.0)).link
    assert late.outcome is LinkOutcome.LOST
    assert judge(waiting, replace(completed, record=record("finished"))).link.outcome is LinkOutcome.FINISHED


@pytest.mark.parametrize("state", [LinkState.INTENDED, LinkState.UNSURE, LinkState.REFUSED])
def test_a_job_that_carries_the_token_is_adopted(state: LinkState) -> None:
    judgement = judge(replace(INTENDED, state=state), replace(NOTHING, jobs=(RUNNING,)))
    assert (judgement.link.job_id, judgement.link.state) == ("7", LinkState.RUNNING)
    assert judgement.notes == ("link 1 of r: adopted job 7, found by the run's token",)


def test_the_record_that_slurm_keeps_of_a_refused_job_is_not_adopted() -> None:
    refused = replace(INTENDED, state=LinkState.REFUSED)
    judgement = judge(refused, replace(NOTHING, jobs=(job("FAILED", JobState.ENDED),)))
    assert (judgement.link, judgement.notes) == (refused, ())


def test_a_job_that_is_purged_but_left_a_sign_of_life_is_adopted() -> None:
    sign = Beacon(1, "7", "n1", 1.0, 60.0)
    assert judge(INTENDED, replace(NOTHING, beacon=sign)).link.job_id == "7"
    finished = judge(INTENDED, replace(NOTHING, record=record("finished"))).link
    assert (finished.job_id, finished.outcome) == ("7", LinkOutcome.FINISHED)


def test_an_intent_without_a_job_is_refused_only_after_two_looks_and_no_sbatch() -> None:
    first = judge(INTENDED, NOTHING).link
    assert first.state is LinkState.UNSURE
    assert judge(first, replace(NOTHING, now=1050.0)).link.state is LinkState.UNSURE
    last = judge(first, replace(NOTHING, now=1100.0)).link
    assert last.state is LinkState.REFUSED
    assert "no sbatch runs" in last.detail


@pytest.mark.parametrize(("alive", "state"), [(True, LinkState.UNSURE), (None, LinkState.UNSURE)])
def test_an_intent_stays_unsure_while_its_submission_may_go_on(alive: bool | None, state: LinkState) -> None:
    first = judge(INTENDED, replace(NOTHING, submitter_alive=None)).link
    assert judge(first, replace(NOTHING, now=5000.0, submitter_alive=alive)).link.state is state


def test_an_intent_of_a_launcher_at_work_is_left_alone() -> None:
    assert judge(INTENDED, replace(NOTHING, submitter_alive=True)).link == INTENDED


@pytest.mark.parametrize("state", [LinkState.INTENDED, LinkState.UNSURE])
def test_could_not_ask_says_nothing_of_an_intent(state: LinkState) -> None:
    link = replace(INTENDED, state=state)
    assert judge(link, replace(NOTHING, jobs=None, queue_error="down")).link == link


def test_a_twin_is_named_and_the_recorded_job_stays() -> None:
    twins = (job("RUNNING", JobState.RUNNING, "8"), RUNNING)
    judgement = judge(QUEUED, replace(NOTHING, jobs=twins))
    assert judgement.link.job_id == "7"
    assert "has a second job (8)" in judgement.notes[0]


def test_of_several_jobs_the_live_one_is_adopted() -> None:
    ended, live = job("FAILED", JobState.ENDED, "6"), job("RUNNING", JobState.RUNNING, "10")
    assert choose_job((ended, live), None) == live
    assert choose_job((ended, live), "6") == ended
    assert choose_job((job("RUNNING", JobState.RUNNING, "10"), job("RUNNING", JobState.RUNNING, "9")), None) is not None
    assert choose_job((), "6") is None
