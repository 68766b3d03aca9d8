"""The local backend runs the very scripts of the chain, in sequence, as Slurm would."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from plans import all_ended, make_plan, outcomes, remember, steps_made, wait_until

from launcher.chain import cancel_run, submit_chain
from launcher.records import Resources
from launcher.scheduler.local import LocalScheduler
from launcher.scheduler.turns import read_state
from launcher.status import RunPhase
from launcher.store import Store


def launch(plan):
    store = Store.open(plan.site.work_root)
    run = remember(plan, store)
    scheduler = LocalScheduler(plan.site.work_root)
    submit_chain(plan, store, scheduler)
    return store, run, scheduler


def test_a_chain_hands_over_at_its_deadline_and_completes(tmp_path: Path):
    plan = make_plan(tmp_path, links=4, walltime=62, save_margin=60, max_steps=60, config={"step_seconds": 0.05})
    store, run, _ = launch(plan)
    status = wait_until(run, store, all_ended, 60)
    assert outcomes(status) == ["handed_over", "finished", "not_needed", "not_needed"]
    assert status.phase is RunPhase.FINISHED
    assert not status.alarms
    made = steps_made(plan)
    assert [step for _, step in made] == list(range(1, 61)), "no step is lost and none is made twice"
    assert {link for link, _ in made} == {1, 2}
