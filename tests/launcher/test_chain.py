"""The write-ahead transaction of a submission, and the order of a cancel; the scheduler misbehaves as told."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.chain import cancel_run, submit_chain
from launcher.errors import LockHeld, PartialChain, PreflightError, SubmissionRefused, SubmissionUnsure
from launcher.intents import read_intent
from launcher.reconcile import reconcile
from launcher.records import LinkState, RunPlan
from launcher.scheduler.base import Job, JobEnd, JobState, QueueUnavailable
from launcher.status import read_status
from launcher.store import Store
from tests.launcher.plans import make_plan, remember


class ScriptedScheduler:
    """Accepts links as jobs 1, 2, ...; `before` runs ahead of each submission and may raise."""

    def __init__(self, store: Store, plan: RunPlan, before: Callable[[int], None] = lambda number: None) -> None:
        self.store, self.plan, self.before = store, plan, before
        self.queue: dict[str, Job] = {}
        self.requests: list[tuple[str, ...]] = []
        self.deaf = False
        self.down = False

    def put(self, number: int, state: JobState = JobState.PENDING) -> str:
        job_id = str(100 + number)
        self.queue[job_id] = Job(job_id, number, self.plan.token, state, state.name, "", "1:00", "")
        return job_id

    def submit(self, plan: RunPlan, number: int, previous: str | None) -> str:
        link = self.store.links(plan.run_id)[number - 1]
        intent = read_intent(plan.paths.link_json(number))
        assert (link.state, link.job_id) == (LinkState.INTENDED, None), "the intent is committed first"
        assert intent is not None
        assert intent.job_id is None
        self.requests.append(("submit", str(number), str(previous)))
        self.before(number)
        return self.put(number)

    def start(self, plan: RunPlan, job_ids: Sequence[str]) -> None:
        self.requests.append(("start", *job_ids))

    def jobs(self, token: str | None = None) -> tuple[Job, ...]:
        if self.down:
            raise QueueUnavailable("squeue did not answer within 60 s")
        return tuple(self.queue.values())

    def end_of(self, job_id: str) -> JobEnd | None:
        return None

    def ask_to_save(self, job_ids: Sequence[str]) -> None:
        self.requests.append(("save", *job_ids))
        if not self.deaf:
            for job_id in job_ids:
                del self.queue[job_id]

    def cancel(self, job_ids: Sequence[str]) -> None:
        self.requests.append(("cancel", *job_ids))
        for job_id in job_ids:
            del self.queue[job_id]

    def submitting(self, script: Path) -> bool:
        return False


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    return make_plan(tmp_path, links=3, save_margin=1)


@pytest.fixture
def store(plan: RunPlan) -> Store:
    store = Store.open(plan.site.work_root)
    remember(plan, store)
    return store


def test_each_link_is_intended_submitted_and_recorded_behind_the_one_before(plan: RunPlan, store: Store) -> None:
    scheduler = ScriptedScheduler(store, plan)
    report = submit_chain(plan, store, scheduler)
    assert report.job_ids == ("101", "102", "103")
    submitted = [("submit", "1", "None"), ("submit", "2", "101"), ("submit", "3", "102")]
    assert scheduler.requests == [*submitted, ("start", "101", "102", "103")]
    assert [(link.state, link.job_id) for link in store.links(plan.run_id)] == [
        (LinkState.QUEUED, "101"),
        (LinkState.QUEUED, "102"),
        (LinkState.QUEUED, "103"),
    ]
    intents = [read_intent(plan.paths.link_json(number)) for number in (1, 2, 3)]
    assert [intent.job_id for intent in intents if intent] == ["101", "102", "103"]


def fail_at(at: int, error: Exception) -> Callable[[int], None]:
    def before(number: int) -> None:
        if number == at:
            raise error

    return before


def test_a_refused_first_link_leaves_no_job(plan: RunPlan, store: Store) -> None:
    scheduler = ScriptedScheduler(store, plan, fail_at(1, SubmissionRefused("no such partition")))
    with pytest.raises(SubmissionRefused, match="no such partition"):
        submit_chain(plan, store, scheduler)
    assert [link.state for link in store.links(plan.run_id)] == [LinkState.REFUSED]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (SubmissionRefused("AssocMaxSubmitJobLimit"), "refused"),
        (PreflightError("sbatch is not on PATH here"), "refused"),
        (LockHeld("launcher.db was locked"), "intended"),
    ],
)
def test_a_failed_later_link_keeps_what_was_accepted_and_can_be_tried_again(
    plan: RunPlan, store: Store, error: Exception, state: str
) -> None:
    scheduler = ScriptedScheduler(store, plan, fail_at(3, error))
    with pytest.raises(PartialChain, match=rf"2 of 3 links .* {error}"):
        submit_chain(plan, store, scheduler)
    assert [link.state for link in store.links(plan.run_id)] == ["queued", "queued", state]
    assert scheduler.requests[-1] == ("start", "101", "102")
    if state == "intended":
        return  # whether it has a job is not known
    scheduler.before = lambda number: None
    assert submit_chain(plan, store, scheduler).job_ids == ("101", "102", "103")
    assert scheduler.requests[-2:] == [("submit", "3", "102"), ("start", "103")], "nothing is submitted twice"


def test_an_unsure_link_that_the_queue_shows_is_adopted_and_the_chain_goes_on(plan: RunPlan, store: Store) -> None:
    scheduler = ScriptedScheduler(store, plan)

    def before(number: int) -> None:
        if number == 2:
            scheduler.put(2)  # accepted, and the answer lost
            raise SubmissionUnsure("Socket timed out")

    scheduler.before = before
    report = submit_chain(plan, store, scheduler, pauses=(0.0,))
    assert report.job_ids == ("101", "102", "103")
    assert report.notes == ("link 2: Socket timed out; job 102 was found in the queue by its token",)
    assert ("submit", "3", "102") in scheduler.requests


@pytest.mark.parametrize("down", [False, True])
def test_an_unsure_link_that_is_not_found_stops_the_chain(plan: RunPlan, store: Store, down: bool) -> None:
    scheduler = ScriptedScheduler(store, plan, fail_at(2, SubmissionUnsure("Socket timed out")))
    scheduler.down = down
    for _ in range(2):  # and a second launch does not submit it either
        with pytest.raises(SubmissionUnsure):
            submit_chain(plan, store, scheduler, pauses=(0.0,))
    assert [link.state for link in store.links(plan.run_id)] == [LinkState.QUEUED, LinkState.UNSURE]
    assert [request[:2] for request in scheduler.requests] == [("submit", "1"), ("submit", "2")]


def test_a_queue_that_does_not_answer_makes_links_unknown_and_the_next_answer_heals(
    plan: RunPlan, store: Store
) -> None:
    scheduler = ScriptedScheduler(store, plan)
    submit_chain(plan, store, scheduler)
    run = store.find_run("@last")
    scheduler.down = True
    reconcile(store, run, scheduler=scheduler, force=True)
    assert {link.state for link in store.links(run.run_id)} == {LinkState.UNKNOWN}
    assert store.find_run("@last").queue_error == "squeue did not answer within 60 s"
    scheduler.down = False
    reconcile(store, run, scheduler=scheduler, force=True)
    assert {link.state for link in store.links(run.run_id)} == {LinkState.QUEUED}
    assert store.find_run("@last").queue_error == ""


def test_the_queue_is_asked_once_in_poll_seconds(plan: RunPlan, store: Store) -> None:
    scheduler = ScriptedScheduler(store, plan)
    submit_chain(plan, store, scheduler)
    run = replace(store.find_run("@last"), poll_seconds=60)
    reconcile(store, run, scheduler=scheduler, clock=lambda: 1000.0)
    scheduler.down = True
    again = replace(store.find_run("@last"), poll_seconds=60)
    reconcile(store, again, scheduler=scheduler, clock=lambda: 1059.0)
    assert {link.state for link in store.links(run.run_id)} == {LinkState.QUEUED}
    reconcile(store, again, scheduler=scheduler, clock=lambda: 1060.0)
    assert {link.state for link in store.links(run.run_id)} == {LinkState.UNKNOWN}


def test_link_rows_are_rebuilt_from_the_run_directory(plan: RunPlan, store: Store) -> None:
    scheduler = ScriptedScheduler(store, plan)
    submit_chain(plan, store, scheduler)
    with store.writing() as db:
        db.execute("delete from links")
    reconcile(store, store.find_run("@last"), scheduler=scheduler, force=True)
    assert [(link.job_id, link.state) for link in store.links(plan.run_id)] == [
        ("101", LinkState.QUEUED),
        ("102", LinkState.QUEUED),
        ("103", LinkState.QUEUED),
    ]


def running_chain(plan: RunPlan, store: Store) -> ScriptedScheduler:
    scheduler = ScriptedScheduler(store, plan)
    submit_chain(plan, store, scheduler)
    scheduler.put(1, JobState.RUNNING)
    scheduler.requests.clear()
    return scheduler


def test_cancel_takes_the_waiting_tail_first_then_asks_the_head_to_save(plan: RunPlan, store: Store) -> None:
    scheduler = running_chain(plan, store)
    report = cancel_run(store.find_run("@last"), store, scheduler, lambda text: None, look_seconds=0.0)
    assert scheduler.requests == [("cancel", "103", "102"), ("save", "101")]
    assert plan.paths.stop.exists()
    assert report.survivors == ()
    assert set(report.cancelled) == {"101", "102", "103"}


def test_a_head_that_does_not_save_is_cancelled_after_the_wait(plan: RunPlan, store: Store) -> None:
    scheduler = running_chain(plan, store)
    scheduler.deaf = True
    cancel_run(store.find_run("@last"), store, scheduler, lambda text: None, save_wait=0.01, look_seconds=0.0)
    assert scheduler.requests == [("cancel", "103", "102"), ("save", "101"), ("cancel", "101")]


def test_a_link_that_appears_during_the_cancel_is_cancelled_too(plan: RunPlan, store: Store) -> None:
    scheduler = running_chain(plan, store)
    looks = iter(range(100))
    jobs = scheduler.jobs

    def late(token: str | None = None) -> tuple[Job, ...]:
        if next(looks) == 3:  # after the first clean look
            scheduler.put(4)
        return jobs(token)

    scheduler.jobs = late  # type: ignore[method-assign]
    report = cancel_run(store.find_run("@last"), store, scheduler, lambda text: None, look_seconds=0.0)
    assert scheduler.requests[-1] == ("cancel", "104")
    assert report.survivors == ()


def test_what_survives_a_cancel_is_reported(plan: RunPlan, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.chain.CANCEL_SECONDS", 0.05)
    scheduler = running_chain(plan, store)
    scheduler.cancel = lambda job_ids: None  # type: ignore[method-assign]
    report = cancel_run(store.find_run("@last"), store, scheduler, lambda text: None, 0.0, look_seconds=0.01)
    assert [job.job_id for job in report.survivors] == ["103", "102", "101"]


def test_a_cancel_that_cannot_ask_leaves_the_stop_file_and_says_so(plan: RunPlan, store: Store) -> None:
    scheduler = running_chain(plan, store)
    scheduler.down = True
    with pytest.raises(QueueUnavailable, match=r"did not answer.*the stop file of .* is in place"):
        cancel_run(store.find_run("@last"), store, scheduler, lambda text: None)
    assert plan.paths.stop.exists()


def test_a_run_whose_directory_was_removed_is_said_so_and_can_be_cancelled(plan: RunPlan, store: Store) -> None:
    scheduler = running_chain(plan, store)
    shutil.rmtree(plan.paths.root)
    reconcile(store, store.find_run("@last"), scheduler=scheduler, force=True)
    alarms = read_status(store.find_run("@last"), store, 0.0).alarms
    assert alarms[0].startswith(f"its directory {plan.paths.root} is gone")
    told: list[str] = []
    report = cancel_run(store.find_run("@last"), store, scheduler, told.append, look_seconds=0.0)
    assert told[0].startswith("its stop file cannot be written (No such file or directory")
    assert (set(report.cancelled), report.survivors) == ({"101", "102", "103"}, ())
