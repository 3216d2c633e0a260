"""What travels between daemon and drivers: every message survives its journey, and a wrong one is named in a line."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.http import schemas
from bftd.protocol import bounds
from bftd.protocol.curves import ORIGINS, CurveEstimate
from bftd.protocol.errors import Malformed
from bftd.protocol.lease import REPORTED, Leases, LeaseView
from bftd.protocol.registration import Held, NodeKind, Registration, Welcome
from bftd.protocol.reports import (
    KINDS,
    Finish,
    LeaseReport,
    ProgressReport,
    Report,
    Reports,
    Summary,
    Taken,
    report_from_json,
)
from bftd.protocol.requirements import Requirements
from bftd.protocol.sizes import Sizes
from tests.support.messages import excerpt, fragment, pattern, wording

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True)
TEXTS = st.from_regex(r"([a-zé]{1,8}( [a-z0-9.]{1,8}){0,3})?", fullmatch=True)
NUMBERS = st.floats(0, 1e12)
COUNTS = st.integers(0, 10_000)
LEASE_IDS = st.builds("{}.{}".format, NAMES, st.integers(1, 10**17))
MAYBE_NUMBERS = st.none() | NUMBERS
# Rates that do not decrease, on some numbers of nodes.
RISING = st.dictionaries(st.integers(1, 1000), st.floats(1e-3, 1e12), min_size=1, max_size=5).map(
    lambda points: tuple(zip(sorted(points), sorted(points.values()), strict=True))
)
ESTIMATES = st.lists(
    st.builds(CurveEstimate, NAMES, RISING, st.sampled_from(ORIGINS), TEXTS),
    max_size=4,
    unique_by=lambda e: e.node_class,
).map(tuple)
KINDS_OF_NODES = st.builds(
    NodeKind, NAMES, st.dictionaries(NAMES, COUNTS, max_size=2), st.lists(NAMES, max_size=3).map(tuple), COUNTS
)

# A field that has no strategy of its own is drawn by its type.
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "at_s": NUMBERS,
    "id": LEASE_IDS,
    "state": st.sampled_from(REPORTED),
    "job_id": st.none() | st.integers(1, 10**9).map(str),
    "estimates": ESTIMATES.filter(len),
    "node": st.none() | NAMES,
    "kind": st.sampled_from(["up", "down", "crash"]),
    "loss": st.none() | st.floats(-1e6, 1e6),
    "rc": st.none() | st.integers(-64, 255),
    "total_steps": st.none() | st.integers(1, 10**15),
}
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: COUNTS,
    float: NUMBERS,
    str: TEXTS,
    float | None: MAYBE_NUMBERS,
    int | None: st.none() | COUNTS,
}


def messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any message of a kind."""
    hints = get_type_hints(kind)
    drawn = {f.name: BY_NAME[f.name] if f.name in BY_NAME else BY_TYPE[hints[f.name]] for f in fields(kind)}
    return st.builds(kind, **drawn)


REPORTS: st.SearchStrategy[Report] = st.one_of([messages(kind) for kind in KINDS.values()])
SIZES = st.builds(lambda low, more: Sizes(low, low + more), st.integers(1, 50), st.integers(0, 50))
VIEWS = st.builds(
    LeaseView, LEASE_IDS, NAMES, st.sampled_from(["granted", "revoked"]), st.booleans(), NUMBERS, TEXTS, COUNTS, TEXTS,
    leave_in_s=MAYBE_NUMBERS,
)  # fmt: skip
CURVES = st.dictionaries(st.integers(1, 1000), NUMBERS, max_size=5).map(lambda points: tuple(sorted(points.items())))
REGISTRATIONS = st.builds(
    Registration,
    id=NAMES,
    name=st.from_regex("[a-z]{1,9}", fullmatch=True),
    backend=NAMES,
    sizes=SIZES,
    user=NAMES,
    partition=NAMES,
    weight=st.floats(0, 1e6),
    workers_per_node=st.none() | st.integers(1, 64),
    curve=CURVES,
    up_cost_s=MAYBE_NUMBERS,
    down_cost_s=MAYBE_NUMBERS,
    warm_up_s=MAYBE_NUMBERS,
    requirements=st.builds(
        Requirements,
        gpu=st.just("") | st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True),
        gpus=st.integers(0, 16),
        features=st.lists(st.from_regex(r"[A-Za-z0-9_.:=+-]{1,20}", fullmatch=True), max_size=4, unique=True).map(
            tuple
        ),
        mix=st.booleans(),
        without=st.sampled_from([(), ("v100",), ("k80", "1g.5gb")]),
    ),
    held=st.lists(st.builds(Held, LEASE_IDS, NAMES, BY_NAME["job_id"]), max_size=3).map(tuple),
    estimates=ESTIMATES,
)

LISTS = st.builds(
    Leases,
    COUNTS,
    NUMBERS,
    st.lists(VIEWS, max_size=4).map(tuple),
    st.from_regex("[A-Za-z0-9-]{0,20}", fullmatch=True),
    st.none() | st.floats(bounds.COMMAND_LEAST_S, bounds.COMMAND_MOST_S),
    st.none() | NUMBERS,
    st.none() | NUMBERS,
)


def sent(message: Any) -> Any:
    """A message as the other side gets it."""
    return json.loads(json.dumps(message.to_json()))


def complaint_about(body: Any) -> str | None:
    """What is said of a report that is wrong."""
    try:
        report_from_json(body)
    except Malformed as error:
        return str(error)
    return None


@given(messages(Taken))
def test_the_answer_to_reports_is_the_same_on_the_other_side(taken: Taken) -> None:
    assert Taken.from_json(sent(taken)) == taken


@given(REPORTS)
def test_every_report_is_the_same_on_the_other_side(report: Report) -> None:
    assert report_from_json(sent(report)) == report


@given(st.integers(1, 99), st.lists(REPORTS, max_size=5))
def test_reports_come_in_the_order_in_which_they_were_sent(epoch: int, reports: list[Report]) -> None:
    told = Reports(epoch, tuple(reports))
    assert Reports.from_json(sent(told)) == told


@given(REGISTRATIONS)
def test_a_registration_is_the_same_on_the_other_side(request: Registration) -> None:
    assert Registration.from_json(sent(request)) == request


@given(LISTS, NUMBERS, TEXTS, st.lists(KINDS_OF_NODES, max_size=3).map(tuple))
def test_a_welcome_with_its_leases_is_the_same_on_the_other_side(
    listed: Leases, poll_s: float, note: str, classes: tuple[NodeKind, ...]
) -> None:
    welcome = Welcome(3, poll_s, listed, note, classes)
    assert Welcome.from_json(sent(welcome)) == welcome
    assert Leases.from_json(sent(listed)) == listed


@given(st.integers(-255, 255), TEXTS, messages(Summary))
def test_the_end_of_a_trainer_is_the_same_on_the_other_side(code: int, reason: str, summary: Summary) -> None:
    finish = Finish(1, code, reason, summary)
    assert Finish.from_json(sent(finish)) == finish


@given(REPORTS, st.data())
def test_a_report_that_lacks_a_field_or_has_a_senseless_one_is_read_or_refused_in_one_line(
    report: Report, data: st.DataObject
) -> None:
    body = sent(report)
    name = data.draw(st.sampled_from(sorted(body)))
    body[name] = data.draw(st.none() | st.booleans() | st.text() | st.integers() | st.just([1]) | st.just({"a": 1}))
    complaint = complaint_about(body)
    assert complaint is None or ("\n" not in complaint and name in complaint)


def test_regression_a_senseless_estimate_was_refused_without_the_name_of_its_field() -> None:
    assert complaint_about({"op": "curve", "at_s": 0.0, "estimates": [1]}) == wording(
        "protocol.curves.estimates_not_objects"
    )


def test_a_loss_that_is_not_finite_is_no_wrong_request() -> None:
    body = {"op": "progress", "at_s": 1.0, "step": 1, "samples": 2.0, "loss": float("nan")}
    assert report_from_json(body) == ProgressReport(1.0, 1, 2.0)


def test_fields_that_this_side_does_not_know_are_ignored() -> None:
    body = sent(Registration("17", "a", "horovod", Sizes(1, 2))) | {"account": "what the driver says", "colour": 3}
    assert Registration.from_json(body) == Registration("17", "a", "horovod", Sizes(1, 2))


def test_a_driver_of_the_first_protocol_is_understood() -> None:
    body = sent(Registration("17", "a", "horovod", Sizes(1, 2)))
    for name in ("protocol", "warm_up_s"):
        del body[name]
    assert Registration.from_json(body) == Registration("17", "a", "horovod", Sizes(1, 2))


def test_a_driver_or_a_daemon_of_another_protocol_is_told_which_one_to_upgrade() -> None:
    newer = sent(Registration("17", "a", "horovod", Sizes(1, 2))) | {"protocol": bounds.VERSION + 1}
    told = pattern("protocol.registration.newer_driver", version=bounds.VERSION + 1, VERSION=bounds.VERSION)
    with pytest.raises(Malformed, match=told):
        Registration.from_json(newer)
    old = {"epoch": 1, "version": 1, "leases": [], "poll_s": 1.0, "note": ""}
    told = pattern("protocol.registration.other_protocol", version=1, VERSION=bounds.VERSION)
    with pytest.raises(Malformed, match=told):
        Welcome.from_json(old)
    with pytest.raises(Malformed, match="leases: min_window_s is missing"):
        Welcome.from_json(old | {"protocol": bounds.VERSION})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"held": [{"id": "n1.1"}] * (bounds.HELD_MOST + 1)},
            wording("protocol.fields.too_many_items", where="trainer", name="held", most=8, len=5001),
        ),
        (
            {"id": "x" * 129},
            excerpt(
                "protocol.fields.wrong", where="trainer", name="id", wanted=wording("protocol.registration.id_wanted")
            ),
        ),
        (
            {"id": "x" * 300},
            excerpt(
                "protocol.fields.wrong",
                where="trainer",
                name="id",
                wanted=wording("protocol.fields.shorter_wanted", most=256),
            ),
        ),
        (
            {"backend": "b" * 300},
            excerpt(
                "protocol.fields.wrong",
                where="trainer",
                name="backend",
                wanted=wording("protocol.fields.shorter_wanted", most=256),
            ),
        ),
        (
            {"nodes_max": bounds.NODES_MOST + 1},
            wording(
                "protocol.fields.wrong",
                where="trainer",
                name="nodes_max",
                wanted="1 to 1000000",
                shown=bounds.NODES_MOST + 1,
            ),
        ),
        ({"nodes_min": 3}, "trainer: nodes_min 3 is above nodes_max 2"),
        (
            {"sizes": [7]},
            wording(
                "protocol.fields.wrong",
                where="trainer",
                name="sizes",
                wanted=wording("protocol.sizes.wanted", low=1, high=2),
                shown=[7],
            ),
        ),
        (
            {"weight": 10**400},
            excerpt("protocol.fields.wrong", where="trainer", name="weight", wanted="a finite number"),
        ),
        (
            {"gpu": "a100; rm"},
            wording(
                "protocol.fields.wrong",
                where="trainer",
                name="gpu",
                wanted=wording("protocol.requirements.gpu_wanted"),
                shown=repr("a100; rm"),
            ),
        ),
        ({"gpus": -1}, wording("protocol.fields.wrong", where="trainer", name="gpus", wanted="0 to 1000000", shown=-1)),
        (
            {"mix": "yes"},
            wording("protocol.fields.wrong", where="trainer", name="mix", wanted="true or false", shown=repr("yes")),
        ),
        (
            {"without": ["a b"]},
            wording(
                "protocol.fields.wrong",
                where="trainer",
                name="without",
                wanted=wording("protocol.requirements.gpus_wanted"),
                shown=["a b"],
            ),
        ),
        (
            {"features": ["ib|x"]},
            wording(
                "protocol.fields.wrong",
                where="trainer",
                name="features",
                wanted=wording("protocol.requirements.features_wanted"),
                shown=["ib|x"],
            ),
        ),
        (
            {"features": [1]},
            wording(
                "protocol.fields.wrong",
                where="trainer",
                name="features",
                wanted=wording("protocol.requirements.features_wanted"),
                shown=[1],
            ),
        ),
        (
            {"features": ["f"] * (bounds.FEATURES_MOST + 1)},
            wording("protocol.fields.too_many_items", where="trainer", name="features", most=32, len=33),
        ),
        (
            {"held": [{"id": "n1"}]},
            wording(
                "protocol.fields.wrong",
                where="trainer: held",
                name="id",
                wanted=wording("protocol.lease.id_wanted"),
                shown=repr("n1"),
            ),
        ),
    ],
)
def test_what_is_out_of_bounds_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    body = sent(Registration("17", "a", "horovod", Sizes(1, 2))) | change
    with pytest.raises(Malformed) as refused:
        Registration.from_json(body)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"samples_per_s": [1.0, float("nan")]},
            excerpt("protocol.fields.wrong", where="estimate", name="samples_per_s", wanted="a finite number"),
        ),
        (
            {"samples_per_s": [1.0, 1e300]},
            excerpt("protocol.fields.wrong", where="estimate", name="samples_per_s", wanted="at most 1e+12"),
        ),
        (
            {"samples_per_s": [2.0, 1.0]},
            "estimate: " + wording("protocol.curves.rates_wanted", ESTIMATE_RATE_LEAST="samples_per_s must be 1e-06"),
        ),
        ({"samples_per_s": [0.0, 1.0]}, "estimate: samples_per_s must be 1e-06 or more"),
        ({"samples_per_s": [5e-324, 1.0]}, "estimate: samples_per_s must be 1e-06 or more"),
        (
            {"samples_per_s": [-1.0, 1.0]},
            excerpt("protocol.fields.wrong", where="estimate", name="samples_per_s", wanted="0 or more"),
        ),
        (
            {"samples_per_s": ["fast", 1.0]},
            excerpt("protocol.fields.wrong", where="estimate", name="samples_per_s", wanted="a finite number"),
        ),
        (
            {"samples_per_s": [1.0]},
            wording(
                "protocol.fields.wrong",
                where="estimate",
                name="nodes",
                wanted=wording("protocol.curves.as_many_wanted"),
                shown=[1, 2],
            ),
        ),
        ({"nodes": [2, 1]}, "estimate: nodes must be in increasing order"),
        ({"nodes": [0], "samples_per_s": [1.0]}, "estimate: samples_per_s must be 1e-06 or more"),
        (
            {"nodes": list(range(1, 34)), "samples_per_s": [1.0] * 33},
            wording("protocol.fields.too_many_items", where="estimate", name="nodes", most=32, len=33),
        ),
        (
            {"nodes": [1] * 10**6, "samples_per_s": [1.0] * 10**6},
            wording("protocol.fields.too_many_items", where="estimate", name="nodes", most=32, len=1000000),
        ),
        (
            {"origin": "sworn"},
            excerpt("protocol.fields.wrong", where="estimate", name="origin", wanted=f"one of {', '.join(ORIGINS)}"),
        ),
        (
            {"class": "a\nb"},
            wording(
                "protocol.fields.wrong",
                where="estimate",
                name="class",
                wanted=wording("protocol.fields.letters_wanted"),
                shown=repr("a\nb"),
            ),
        ),
    ],
)
def test_an_estimate_that_cannot_be_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    estimate = CurveEstimate("a100x4", ((1, 1.0), (2, 2.0))).to_json() | change
    for read, body in (
        (report_from_json, {"op": "curve", "at_s": 1.0, "estimates": [estimate]}),
        (Registration.from_json, sent(Registration("17", "a", "horovod", Sizes(1, 2))) | {"estimates": [estimate]}),
    ):
        with pytest.raises(Malformed) as refused:
            read(body)
        assert str(refused.value).startswith(said)
        assert "\n" not in str(refused.value)


def test_estimates_are_bounded_and_of_different_classes() -> None:
    estimates = [CurveEstimate(f"c{number}", ((1, 1.0),)).to_json() for number in range(33)]
    with pytest.raises(
        Malformed, match=pattern("protocol.fields.too_many_items", name=fragment("estimates"), most=32, len=33)
    ):
        report_from_json({"op": "curve", "at_s": 1.0, "estimates": estimates})
    with pytest.raises(Malformed, match="estimates must be " + pattern("protocol.reports.list_wanted")):
        report_from_json({"op": "curve", "at_s": 1.0, "estimates": []})
    with pytest.raises(Malformed, match=pattern("protocol.curves.class_twice", name="estimates")):
        report_from_json({"op": "curve", "at_s": 1.0, "estimates": estimates[:1] * 2})


def test_an_older_daemon_tells_no_classes_of_nodes() -> None:
    body = sent(Welcome(3, 1.0, Leases(1, 20.0, ())))
    del body["classes"]
    assert Welcome.from_json(body).classes == ()


def test_a_list_of_reports_is_bounded() -> None:
    many = [sent(LeaseReport(1.0, "n1.1", "ended"))] * (bounds.REPORTS_MOST + 1)
    with pytest.raises(Malformed, match="may hold 500 items"):
        Reports.from_json({"epoch": 1, "events": many})


@pytest.mark.parametrize(
    ("name", "value"), [("weight", 1e300), ("up_cost_s", 1e300), ("workers_per_node", 10**400), ("weight", 10**400)]
)
def test_regression_one_trainers_senseless_number_failed_the_solver_for_all(name: str, value: float) -> None:
    body = {"id": "7", "backend": "torchrun", "nodes_min": 1, "nodes_max": 2, name: value}
    with pytest.raises(Malformed, match=f"{name} must be"):
        Registration.from_json(body)


def test_a_lease_says_when_it_must_be_gone_only_where_that_is_known() -> None:
    plain = LeaseView("n1.1", "n1", "revoked", False, 60.0)
    assert "leave_in_s" not in plain.to_json(), "a driver of an older bftd gets what it knows"
    other = LeaseView("n1.1", "n1", "revoked", False, 60.0, leave_in_s=0.0)
    assert LeaseView.from_json(sent(other)) == other
    assert LeaseView.from_json(sent(plain)) == plain


def test_a_lease_says_a_partition_only_where_there_are_several() -> None:
    plain = LeaseView("n1.1", "n1", "granted", False, 60.0)
    assert "partition" not in plain.to_json(), "a driver of an older bftd gets what it knows"
    other = LeaseView("n1.1", "n1", "granted", False, 60.0, partition="late")
    assert LeaseView.from_json(sent(other)) == other
    assert LeaseView.from_json(sent(plain)) == plain


@pytest.mark.parametrize(
    ("harvested", "asked", "taken"),
    [(("a",), "", "a"), (("a",), "a", "a"), (("a", "b"), "", ""), (("a", "b"), "b", "b")],
)
def test_a_trainer_is_of_the_harvested_partition_that_it_names_or_of_any(
    harvested: tuple[str, ...], asked: str, taken: str
) -> None:
    body = sent(Registration("17", "a", "horovod", Sizes(1, 2), partition=asked))
    assert schemas.registration(body, harvested, "ann").partition == taken


def test_a_trainer_of_another_partition_is_told_which_there_are() -> None:
    body = sent(Registration("17", "a", "horovod", Sizes(1, 2), partition="c"))
    with pytest.raises(
        Malformed, match=pattern("http.bodies.other_partition", some="partitions a and b", partition="c")
    ):
        schemas.registration(body, ("a", "b"), "ann")


def test_a_list_names_its_daemon_by_one_word_or_not_at_all() -> None:
    body = Leases(1, 20.0, (), "a1b2c3d4").to_json()
    assert Leases.from_json(body).daemon == "a1b2c3d4"
    with pytest.raises(Malformed, match="daemon must be a word"):
        Leases.from_json(body | {"daemon": "two words"})
    del body["daemon"]
    assert Leases.from_json(body).daemon == ""


def test_a_list_tells_of_the_sites_stage_or_of_none() -> None:
    body = Leases(1, 20.0, (), stage="/local/scratch/{user}").to_json()
    assert Leases.from_json(body).stage == "/local/scratch/{user}"
    for wrong in ("scratch", "/a\nb", 5, "/a/../b"):
        with pytest.raises(Malformed, match="stage"):
            Leases.from_json(body | {"stage": wrong})
    del body["stage"]
    assert Leases.from_json(body).stage == ""


@pytest.mark.parametrize("letter", ["\x1b", "\x00", "\x07", "\x9b", "\u202e", "\ud800"])
def test_regression_control_letters_and_halves_of_letters_reached_the_administrators_terminal(letter: str) -> None:
    told = report_from_json({"op": "crash", "at_s": 1.0, "text": f"a{letter}[2Jb"})
    assert told.text == "a [2Jb"  # type: ignore[union-attr]
    body = {"id": "7", "backend": "torchrun", "nodes_min": 1, "nodes_max": 2, "partition": f"a{letter}b"}
    with pytest.raises(Malformed, match="partition must be " + pattern("protocol.fields.letters_wanted")):
        Registration.from_json(body)


def test_a_list_tells_the_daemons_clock_its_last_look_and_the_sites_time_out_within_bounds_or_not_at_all() -> None:
    body = Leases(1, 20.0, (), timeout_s=12.0, now_s=1000.5, looked_s=999.5, calm_s=1020.0).to_json()
    told = Leases.from_json(body)
    assert (told.timeout_s, told.now_s, told.looked_s, told.calm_s) == (12.0, 1000.5, 999.5, 1020.0)
    wrongs: tuple[dict[str, Any], ...] = ({"timeout_s": 0.0}, {"timeout_s": 61.0}, {"timeout_s": "x"})
    wrongs += ({"calm_s": -1.0}, {"calm_s": "soon"})
    for wrong in (*wrongs, {"now_s": -1.0}, {"now_s": True}, {"looked_s": -1.0}, {"looked_s": "yesterday"}):
        with pytest.raises(Malformed, match=next(iter(wrong))):
            Leases.from_json(body | wrong)
    del body["timeout_s"], body["now_s"], body["looked_s"], body["calm_s"]
    older = Leases.from_json(body)
    assert (older.timeout_s, older.now_s, older.looked_s, older.calm_s) == (None, None, None, None)


def test_a_list_tells_how_the_site_starts_containers_and_an_older_daemon_says_nothing_of_it() -> None:
    body = Leases(1, 20.0, (), container="apptainer").to_json()
    assert Leases.from_json(body).container == "apptainer"
    del body["container"]
    assert Leases.from_json(body).container == ""
