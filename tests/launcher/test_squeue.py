"""What squeue, scontrol and sbatch print, as recorded from Slurm 22.05."""

from __future__ import annotations

import pytest

from launcher.errors import SubmissionUnsure
from launcher.scheduler.base import Job, JobEnd, JobState
from launcher.scheduler.executor import LinkExecutor
from launcher.scheduler.squeue import Refusal, job_state, judge_refusal, of_token, parse_job, parse_queue

QUEUE = """\
12|RUNNING|None|1:00|node1|demo-20260101-aaaa.0badcafe|demo-20260101-aaaa 0badcafe link=1
13|PENDING|Dependency|1:00||demo-20260101-aaaa.0badcafe|demo-20260101-aaaa 0badcafe link=2
9|FAILED|NonZeroExitCode|10:00|node[1-2]|other-20260101-bbbb.12345678|other-20260101-bbbb 12345678 link=10
"""


def test_a_job_of_ours_is_read_by_position() -> None:
    first, second, third = parse_queue(QUEUE)
    assert first == Job("12", 1, "0badcafe", JobState.RUNNING, "RUNNING", "", "1:00", "node1")
    assert (second.state, second.reason, second.nodes) == (JobState.PENDING, "Dependency", "")
    assert (third.live, third.link, third.word) == (False, 10, "FAILED")
    assert of_token(parse_queue(QUEUE), "0badcafe") == (first, second)
    assert of_token(parse_queue(QUEUE), None) == (first, second, third)


@pytest.mark.parametrize(
    "line",
    [
        "14|RUNNING|None|1:00|node1|bash|",
        "14|RUNNING|None|1:00|node1|a|b|c|d 0badcafe link=1",  # somebody's name with our separator
        "14|RUNNING|None|1:00|node1|mine|demo 0badcafe link=1",  # mentions our token, but is not called by it
        "14|RUNNING|None|1:00|node1|demo.0badcafe|a comment of somebody",
    ],
)
def test_a_job_that_is_not_ours_is_never_taken_for_one(line: str) -> None:
    assert of_token(parse_queue(line), None) == ()


@pytest.mark.parametrize("line", ["", "slurm_load_jobs error", "x|y", "14|RUNNING|None|1:00|node1|name"])
def test_a_line_of_another_shape_is_left_out(line: str) -> None:
    assert parse_queue(line) == ()


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", JobState.PENDING),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("RUNNING", JobState.RUNNING),
        ("SUSPENDED", JobState.RUNNING),
        ("COMPLETING", JobState.COMPLETING),
        ("CANCELLED by 1000", JobState.ENDED),
        ("PREEMPTED", JobState.ENDED),
        ("OUT_OF_MEMORY", JobState.ENDED),
        ("EXPEDITING", JobState.OTHER),
        ("", JobState.OTHER),
    ],
)
def test_a_state_word_that_we_do_not_know_is_no_end(word: str, state: JobState) -> None:
    assert job_state(word) is state


@pytest.mark.parametrize(
    ("record", "end"),
    [
        ("JobId=7 JobName=x JobState=TIMEOUT Reason=TimeLimit ExitCode=0:9 Comment=a", JobEnd("TIMEOUT", 0, 9)),
        ("JobId=7 JobState=FAILED Reason=NonZeroExitCode ExitCode=7:0", JobEnd("FAILED", 7, 0)),
        ("JobId=7 JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0", JobEnd("NODE_FAIL", 0, 0)),
        ("JobId=7 JobState=RUNNING Reason=None ExitCode=0:0", None),
        ("", None),
    ],
)
def test_how_a_job_ended(record: str, end: JobEnd | None) -> None:
    assert parse_job(record) == end


@pytest.mark.parametrize(
    ("stderr", "verdict"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "refused"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", "refused"),
        ("sbatch: error: Munge encode failed: Failed to access", "refused"),
        ("sbatch: unrecognized option '--x'", "refused"),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", "unsure"),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", "unsure"),
        ("", "unsure"),
        ("Killed", "unsure"),
    ],
)
def test_a_failing_sbatch_is_no_proof_that_no_job_exists(stderr: str, verdict: str) -> None:
    assert judge_refusal(stderr) is Refusal(verdict)


@pytest.mark.parametrize(
    ("printed", "job_id"),
    [("123\n", "123"), ("777;clusterA\n", "777"), ("Welcome, your job 5 is dear to us\n\n123\n\n", "123")],
)
def test_the_id_is_the_last_line(printed: str, job_id: str) -> None:
    assert LinkExecutor._get_job_id_from_submission_command(printed) == job_id


@pytest.mark.parametrize("printed", ["", "\n", "Submitted batch job 123\n", "123\nbye\n", "12 3"])
def test_anything_else_is_unsure_and_never_an_id(printed: str) -> None:
    with pytest.raises(SubmissionUnsure, match="where a job id was expected"):
        LinkExecutor._get_job_id_from_submission_command(printed)
