"""The draft of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bftd.core.model.domain import Lease, PoolNode
from bftd.core.model.draft import Draft
from tests.bftd.builders import leased, state_of, trainer


class Counted(dict[str, Lease]):
    """Leases that count how often somebody looks through all of them."""

    looks = 0

    def values(self) -> Iterator[Lease]:  # type: ignore[override]
        self.looks += 1
        return iter(super().values())


def test_the_leases_of_each_of_many_trainers_are_found_without_a_look_through_those_of_all() -> None:
    """500 trainers' reports took a second at each poll: all leases were looked through for each of them."""
    trainers = [trainer(str(number)) for number in range(20)]
    turn = Draft(state_of(trainers, [leased(f"n{number}", str(number % 20)) for number in range(60)]), 10_000.0)
    turn.leases = counted = Counted(turn.leases)
    for one in trainers:
        assert [item.node for item in turn.leases_of(one.id)] == [f"n{int(one.id) + more}" for more in (0, 20, 40)]
    assert counted.looks <= 2


def test_leases_that_are_granted_changed_and_ended_meanwhile_are_known_by_their_trainer() -> None:
    turn = Draft(
        state_of([trainer("1"), trainer("2")], [leased("n1", "1"), leased("n2", "2"), leased("n3", "1")]), 10_000.0
    )
    for _ in range(3):
        assert [item.node for item in turn.leases_of("1")] == ["n1", "n3"]
    turn.end(turn.leases["n1.1"], "")
    turn.grant("1", PoolNode("n4", "IDLE", True, ""), "")
    turn.change_lease(turn.leases["n3.3"], phase="leaving")
    assert [(item.node, item.phase) for item in turn.leases_of("1")] == [("n3", "leaving"), ("n4", "granted")]
    turn.leases["n3.3"] = replace(turn.leases["n3.3"], alarmed=True)
    assert turn.leases_of("1")[0].alarmed
    assert [item.node for item in turn.leases_of("2")] == ["n2"]
    assert turn.leases_of("3") == []
