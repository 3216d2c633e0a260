"""What makes the demo fail."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from examples import demo


def good() -> dict[str, Any]:
    trainers = [
        {
            "name": name,
            "backend": name,
            "resizes": 3,
            "suspends": 1,
            "steps": demo.STEPS,
            "steps_lost": 4,
            "samples": 100,
            "first_loss": 1.4,
            "last_loss": 0.3,
            "exit_code": 0,
        }
        for name in ("horovod", "torchrun")
    ]
    return {
        "regular_jobs": [{"id": "1", "nodes": 2, "submit_s": 1.0, "start_s": 1.5, "delay_s": 0.5}],
        "regular_jobs_baseline_delay_s": 0.4,
        "trainers": trainers,
        "give_back_s": {"p50": 0.2, "p99": 0.3, "max": 0.3},
        "pool_node_seconds": 100.0,
        "used_node_seconds": 90.0,
        "training_node_seconds": 60.0,
        "leaked_pilots": 0,
    }


BASELINE = [{"delay_s": 0.4}]


def test_a_good_run_has_no_fault() -> None:
    assert demo.faults(good(), BASELINE) == []


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (("regular_jobs", 0, "delay_s"), None, "did not start"),
        (("regular_jobs", 0, "delay_s"), 1.5, "waited"),
        (("trainers", 0, "exit_code"), 1, "exit code 1"),
        (("trainers", 1, "exit_code"), None, "exit code None"),
        (("trainers", 0, "resizes"), 0, "resized"),
        (("trainers", 1, "suspends"), 0, "suspended"),
        (("trainers", 0, "steps"), 7, "7 steps"),
        (("trainers", 0, "steps_lost"), 1000, "lost 1000"),
        (("trainers", 0, "last_loss"), 1.5, "loss"),
        (("leaked_pilots",), 2, "2 pilots"),
        (("used_node_seconds",), 70.0, "unused"),
        (("pool_node_seconds",), 0.0, "unused"),
    ],
)
def test_each_thing_that_does_not_hold_is_a_fault(path: tuple[Any, ...], value: Any, word: str) -> None:
    summary = copy.deepcopy(good())
    place = summary
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    found = demo.faults(summary, BASELINE)
    assert len(found) == 1
    assert word in found[0]
