"""What goes between stages, and over which links."""

from __future__ import annotations

import pytest

from sizing.base.errors import NoTable
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.cells.comm.protocol import Link
from sizing.cells.placing import boundary_link, data_rings, tensor_link, usable_per_node
from sizing.cells.stage_transfers import transfer
from tests.sizing.cells.made import Wires, cell_of

pytestmark = pytest.mark.slow


def test_replicas_send_their_part_and_get_as_much_back() -> None:
    cell = cell_of(4, 4)
    took = transfer(cell, 1, 4e6, Parallel(4, 1), Parallel(4, 1), Wires(), 8)
    assert took.value == pytest.approx(2 * (1e-5 + 1e6 / 1e9))


def test_tensor_parallel_ranks_send_parts_and_gather_them_where_that_is_quicker() -> None:
    class Uneven(Wires):
        def time_s(self, kind: str, nbytes: float, link: Link) -> Estimate:
            fast = kind == "all_gather"
            return super().time_s(kind, nbytes / (100 if fast else 1), link)

    cell = cell_of(4, 4)
    whole = transfer(cell, 1, 4e6, Parallel(1, 4), Parallel(1, 4), Wires(), 8).value
    assert whole == pytest.approx(2 * (1e-5 + 4e6 / 1e9))
    assert transfer(cell, 1, 4e6, Parallel(1, 4), Parallel(1, 4), Uneven(), 8).value == pytest.approx(
        2 * (2e-5 + 1e6 / 1e9 + 4e4 / 1e9)
    )


def test_without_a_table_of_gathers_all_is_sent_whole() -> None:
    class Sends(Wires):
        def time_s(self, kind: str, nbytes: float, link: Link) -> Estimate:
            if kind != "send_recv":
                raise NoTable(kind)
            return super().time_s(kind, nbytes, link)

    took = transfer(cell_of(4, 4), 1, 4e6, Parallel(4, 1), Parallel(1, 4), Sends(), 8)
    # each of four ranks gets all 4 MB; their gradients go back as a quarter to each replica
    assert took.value == pytest.approx(1e-5 + 4 * 4e6 / 4 / 1e9 + 1e-5 + 1e6 / 1e9)


@pytest.mark.parametrize(
    ("split", "link"),
    [(Parallel(1, 4), Link("a100", 4, 1)), (Parallel(2, 2), Link("a100", 2, 1)), (Parallel(1, 16), Link("a100", 8, 2))],
)
def test_tensor_parallel_ranks_lie_close(split: Parallel, link: Link) -> None:
    assert tensor_link(cell_of(split.gpus), 0, split, 8) == link


@pytest.mark.parametrize(
    ("split", "link", "at_once"),
    [
        (Parallel(8, 1), Link("a100", 8, 1), 1),
        (Parallel(2, 4), Link("a100", 2, 1), 1),
        (Parallel(16, 1), Link("a100", 8, 2), 1),
        (Parallel(2, 8), Link("a100", 8, 2), 8),
        (Parallel(2, 16), Link("a100", 8, 2), 8),
    ],
)
def test_replicas_lie_around_them(split: Parallel, link: Link, at_once: int) -> None:
    rings = data_rings(cell_of(split.gpus), 0, split, 8)
    assert (rings.link, rings.at_once) == (link, at_once)


def test_stages_of_one_node_speak_within_it() -> None:
    cell = cell_of(2, 2, 4, 8)
    assert boundary_link(cell, 1, 8) == Link("a100", 2, 1)
    assert boundary_link(cell, 2, 8) == Link("a100", 2, 1)
    assert boundary_link(cell, 3, 8) == Link("a100", 1, 2)


def test_of_six_gpus_a_node_cells_use_four() -> None:
    assert [usable_per_node(count) for count in (1, 2, 3, 6, 8)] == [1, 2, 2, 4, 8]


def test_regression_a_stage_across_the_end_of_a_node_was_given_the_link_within_one() -> None:
    cell = cell_of(2, 1, 4, 1)  # on nodes of 4 the third stage has GPUs 3 to 6
    assert tensor_link(cell, 2, Parallel(1, 4), 4) == Link("a100", 2, 2)
    assert tensor_link(cell, 2, Parallel(2, 2), 4) == Link("a100", 1, 2)
    for split, at_once in ((Parallel(4, 1), 1), (Parallel(2, 2), 2)):
        rings = data_rings(cell, 2, split, 4)
        assert (rings.link, rings.at_once) == (Link("a100", 2, 2), at_once)
    assert tensor_link(cell_of(4, 1, 2, 1), 2, Parallel(1, 2), 2) == Link("a100", 1, 2)
    assert tensor_link(cell, 0, Parallel(1, 2), 4) == Link("a100", 2, 1)
