"""The learning rate is a function of the step."""

import pytest

from dflash_train.config import Schedule, SchedulerConfig
from dflash_train.engine.optim import learning_rate


@pytest.mark.parametrize(
    ("kind", "step", "wanted"),
    [
        (Schedule.constant, 1, 0.1),
        (Schedule.constant, 10, 1.0),
        (Schedule.constant, 5000, 1.0),
        (Schedule.linear, 10, 1.0),
        (Schedule.linear, 60, 0.6),
        (Schedule.linear, 110, 0.2),
        (Schedule.linear, 5000, 0.2),
        (Schedule.cosine, 10, 1.0),
        (Schedule.cosine, 60, 0.6),
        (Schedule.cosine, 110, 0.2),
        (Schedule.cosine, 5000, 0.2),
    ],
)
def test_warm_up_then_the_schedule_down_to_its_floor(kind, step, wanted):
    config = SchedulerConfig(kind=kind, warmup_steps=10, horizon=110, min_ratio=0.2)
    assert learning_rate(step, 1.0, config) == pytest.approx(wanted)


def test_no_warm_up_starts_at_the_full_rate():
    assert learning_rate(1, 6e-4, SchedulerConfig()) == 6e-4
