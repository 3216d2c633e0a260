"""What other settings would have brought, told as far as it can be told."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bftd.simulation.effect import comparison
from bftd.simulation.effect.comparison import Effect, compared
from slurm_plugin.nodeset import fold
from tests.support.messages import wording

pytestmark = pytest.mark.slow

PRESENT = {"max_nodes": 0, "max_share": 1.0, "t_fwd_s": 120.0, "objective": "efficiency", "pj_max": 2}
NAMES = tuple(f"n{number}" for number in range(1, 17))


def trainer(id_: str, nodes_max: int = 4, **fields: Any) -> dict[str, Any]:
    """One that was there all the time and still is."""
    plain = {
        "id": id_,
        "arrived_s": 0.0,
        "ended_s": None,
        "nodes_min": 1,
        "nodes_max": nodes_max,
        "weight": 1.0,
        "curve": [[1, 10.0], [nodes_max, 10.0 * nodes_max]],
        "up_cost_s": 20.0,
        "down_cost_s": 10.0,
        "warm_up_s": 10.0,
        "samples": 0.0,
        "began_samples": 0.0,
        "worked_s": 0.0,
    }
    return plain | fields


def answer(hours: float = 24.0, trainers: int = 6, every_s: float = 300.0, **fields: Any) -> dict[str, Any]:
    """A pool in which a node comes or goes every few minutes."""
    draw, begin_s = random.Random(7), 1e6
    inside = set(NAMES[:10])
    changes: list[dict[str, Any]] = [{"at_s": begin_s, "nodes": fold(sorted(inside)), "beyond": "", "seen_s": None}]
    at_s = begin_s
    while (at_s := at_s + draw.expovariate(1 / every_s)) < begin_s + hours * 3600:
        name = draw.choice(NAMES)
        changes.append({"at_s": at_s, "left" if name in inside else "joined": name})
        inside ^= {name}
    told = {
        "format": 1,
        "time_s": begin_s + hours * 3600,
        "partition_nodes": len(NAMES),
        "classes": 1,
        "settings": PRESENT,
        "changes": changes,
        "trainers": [trainer(str(number)) for number in range(trainers)],
        "left_out": 0,
    }
    return told | fields


def test_a_setting_that_would_have_recovered_more_is_told_with_its_figures() -> None:
    found = compared(answer(), PRESENT | {"pj_max": 4})
    assert found.gain is not None
    assert found.low is not None
    assert found.high is not None
    assert found.sure
    assert found.low < found.gain < found.high
    # of two trainers on up to four nodes each, four have the most that the pool has now and then
    assert 0.1 < found.gain < 1.0
    assert found.recovered_node_hours_after / found.recovered_node_hours_before == pytest.approx(1 + found.gain)
    assert found.u_before is not None
    assert found.u_after is not None
    assert found.u_after / found.u_before == pytest.approx(1 + found.gain)
    assert 0.3 < found.u_before < found.u_after <= 1.0
    text = found.text("--pj-max 4")
    assert text.startswith(
        wording("whatif.comparison.gain", what="--pj-max 4", gain=f"{found.gain:+.1%}", over="over the last 24 h (")
    )
    assert f"U {found.u_before:.1%} -> {found.u_after:.1%}; 6 trainers, {found.changes} changes" in text


def test_the_way_back_is_the_loss_that_the_way_there_was_a_gain() -> None:
    there, back = compared(answer(6.0), PRESENT | {"pj_max": 4}), answer(6.0, settings=PRESENT | {"pj_max": 4})
    loss = compared(back, PRESENT)
    assert there.gain is not None
    assert loss.gain is not None
    assert (1 + there.gain) * (1 + loss.gain) == pytest.approx(1.0)
    assert loss.sure


def test_a_difference_within_what_hours_differ_by_is_none_that_can_be_told() -> None:
    found = compared(answer(6.0), PRESENT | {"t_fwd_s": 121.0})
    assert not found.sure
    assert found.text("--t-fwd 121").startswith(
        wording("whatif.comparison.no_difference", what="--t-fwd 121", over="over the")
    )


@pytest.mark.parametrize("change", [{"max_nodes": 4}, {"max_share": 0.25}, {"max_share": 0.0}])
def test_a_bound_on_all_nodes_is_replayed_too(change: dict[str, Any]) -> None:
    found = compared(answer(6.0, trainers=2), PRESENT | change)
    assert found.gain is not None
    assert found.sure
    assert found.gain == pytest.approx(-1.0 if change == {"max_share": 0.0} else -0.45, abs=0.1)


def test_a_solver_that_plans_otherwise_is_replayed() -> None:
    past = answer(6.0, settings=PRESENT | {"solver": "auto", "pj_max": 6})
    for solver, otherwise in (("equal-share", True), ("gurobi", False)):
        found = compared(past, past["settings"] | {"solver": solver})
        assert (found.gain is not None) == otherwise
        assert (found.why_not is None) == otherwise
    assert compared(past, past["settings"] | {"solver": "equal-share"}).gain != 0.0


def test_a_solver_that_is_not_installed_leaves_the_effect_of_the_other_settings_to_be_told() -> None:
    there = compared(answer(6.0), PRESENT | {"pj_max": 4})
    assert compared(answer(6.0), PRESENT | {"pj_max": 4, "solver": "gurobi"}).gain == there.gain


def test_what_ends_and_comes_is_replayed_by_its_work() -> None:
    ended = trainer("e", ended_s=1e6 + 4000, samples=9000.0, began_samples=1000.0)
    late = trainer("late", arrived_s=1e6 + 5 * 3600.0)
    found = compared(answer(6.0, trainers=0) | {"trainers": [ended, late]}, PRESENT | {"pj_max": 1})
    # 8,000 samples at 10 samples/s and node are 800 node-seconds; the other has an hour on four nodes at most
    assert 800 / 3600 < found.recovered_node_hours_before < 800 / 3600 + 4.0
    assert found.trainers == 2


def test_what_cannot_be_told_says_why() -> None:
    reasons = {
        "the ledger has 0.5 h of the pool, and 1 h is the least": answer(0.5),
        "the ledger has 0.0 h of the pool": answer(2.0, changes=[]),
        wording("whatif.comparison.nothing_to_do"): answer(2.0, trainers=0),
    }
    for why, told in reasons.items():
        found = compared(told, PRESENT | {"pj_max": 4})
        assert found.gain is None
        assert found.text("--pj-max 4").startswith(wording("whatif.comparison.unknown", what="--pj-max 4", why_not=why))


def test_fewer_hours_are_replayed_where_all_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def passing() -> float:
        now_s[0] += 0.02
        return now_s[0]

    monkeypatch.setattr(comparison.time, "monotonic", passing)
    # the clock goes on whenever somebody looks at it: about every 20 events
    found = compared(answer(24.0, every_s=60.0), PRESENT | {"pj_max": 4}, limit_s=3.0)
    assert found.gain is not None
    assert 1.0 <= found.hours < 20.0
    assert found.notes[0] == wording("whatif.comparison.too_long", known_h=f"{found.hours:.3g}", limit_s=3)
    never = compared(answer(24.0, every_s=60.0), PRESENT | {"pj_max": 4}, limit_s=0.1)
    assert never.why_not == wording("whatif.comparison.too_slow", LEAST_H=1, limit_s=0)


def test_what_to_keep_in_mind_is_told_beside_it() -> None:
    told = answer(2.0, left_out=3, classes=2)
    found = compared(told, PRESENT | {"pj_max": 4})
    assert found.notes == (
        wording("whatif.comparison.known_hours", known_h=2, hours=24),
        wording("whatif.comparison.left_out", left_out="3 trainers"),
        wording("whatif.comparison.classes_ignored"),
    )
    assert Effect(**found.to_json() | {"notes": found.notes}) == found
