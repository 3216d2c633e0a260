"""Batches: the same samples in the same steps on any number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elastic
from elastic.base.errors import UsageError
from elastic.script import ranks
from elastic.script.data import Batches, Step
from elastic.script.permutation import Order
from elastic.worker import driver_link
from elastic.worker.driver_link import DriverLink
from tests.support.messages import pattern

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, alone: None) -> None:
    monkeypatch.setattr(driver_link, "_current", DriverLink())


def at(rank: int = 0, size: int = 1, step: int = 0) -> None:
    ranks.use(ranks.World(lambda: rank, lambda: size, lambda: step))


def shares(plan: Batches, size: int, step: int = 0, count: int | None = None) -> list[list[Step]]:
    """The steps of every worker; their parts have been gone through."""
    found = []
    for rank in range(size):
        at(rank, size, step)
        mine = []
        for one in plan.steps(start=step):
            kept = list(one)
            mine.append(Step(one.number, one.epoch, one.samples, one.global_samples, kept))  # type: ignore[arg-type]
            if len(mine) == count:
                break
        found.append(mine)
    return found


def seen(steps: list[list[Step]], index: int) -> list[int]:
    """The samples of one step, of all workers in turn."""
    return [sample for mine in steps for part in mine[index] for sample in part.data if part.weight]


PLANS = st.builds(
    Batches,
    st.integers(1, 90),
    global_batch=st.integers(1, 40),
    micro_batch=st.none() | st.integers(1, 9),
    seed=st.integers(0, 5),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
)
SIZES = st.integers(1, 7)


@given(PLANS, SIZES)
@settings(max_examples=50, deadline=None)
def test_every_step_has_the_samples_that_it_has_on_one_worker(plan: Batches, size: int) -> None:
    one, many = shares(plan, 1), shares(plan, size)
    assert len(one[0]) == plan.end
    for index in range(len(one[0])):
        assert seen(many, index) == seen(one, index)


@given(PLANS)
@settings(max_examples=33, deadline=None)
def test_an_epoch_has_every_sample_once(plan: Batches) -> None:
    steps = shares(plan, 1)
    for epoch in range((plan.end or 0) // plan.steps_per_epoch):
        indices = [index for index, one in enumerate(steps[0]) if one.epoch == epoch]
        samples = [sample for index in indices for sample in seen(steps, index)]
        assert sorted(samples) == list(range(max(samples) + 1))
        assert len(samples) == plan._length


@given(PLANS, st.lists(st.tuples(SIZES, st.integers(1, 4)), min_size=1, max_size=12))
@settings(max_examples=33, deadline=None)
def test_resizes_at_any_step_leave_nothing_out_and_take_nothing_twice(
    plan: Batches, lives: list[tuple[int, int]]
) -> None:
    whole = shares(plan, 1)
    step, found = 0, []
    for size, count in lives:
        steps = shares(plan, size, step, count)
        found += [seen(steps, index) for index in range(len(steps[0]))]
        step += len(steps[0])
    assert found == [seen(whole, index) for index in range(len(found))]


@given(PLANS, SIZES)
@settings(max_examples=33, deadline=None)
def test_the_averaged_weights_make_the_mean_over_the_global_batch(plan: Batches, size: int) -> None:
    # each sample has a loss of its own; workers average what they computed, as DDP and Horovod do
    for index, mine in enumerate(zip(*shares(plan, size), strict=True)):
        averaged = sum(sum(part.data) / len(part.data) * part.weight for one in mine for part in one) / size
        samples = seen(shares(plan, 1), index)
        assert averaged == pytest.approx(sum(samples) / len(samples))
        if index > 3:
            break


@given(PLANS, SIZES)
@settings(max_examples=20, deadline=None)
def test_shares_differ_by_one_sample_and_no_part_is_larger_than_asked_for(plan: Batches, size: int) -> None:
    for mine in zip(*shares(plan, size), strict=True):
        counts = [one.samples for one in mine if one.samples]
        assert max(counts) - min(counts) <= 1
        assert len(counts) == size or min(counts) <= 3, "fewer share what is too little for all"
        if 2 * size <= plan._global_batch and mine[0].global_samples > 1:
            assert min(counts) > 1, "batch normalisation takes no piece of one sample"
        assert sum(counts) == mine[0].global_samples
        most = plan._micro_batch or plan._global_batch
        assert all(len(part.data) <= most for one in mine for part in one)
        assert [[part.last for part in one][-1] for one in mine] == [True] * size
        assert all(not part.last for one in mine for part in list(one)[:-1])


def test_a_worker_without_a_sample_computes_one_that_counts_for_nothing() -> None:
    first, second, third = (mine[0] for mine in shares(Batches(10, global_batch=2), 3, count=1))
    assert sorted(one.samples for one in (first, second, third)) == [0, 1, 1]
    idle = next(one for one in (first, second, third) if not one.samples)
    assert [(part.weight, part.last, len(part.data)) for part in idle] == [(0.0, True, 2)]


@given(st.integers(1, 90), st.integers(1, 40), st.integers(1, 40), SIZES)
@settings(max_examples=50, deadline=None)
def test_pieces_of_a_step_are_the_same_on_any_number_of_workers(
    length: int, global_batch: int, pieces: int, size: int
) -> None:
    plan = Batches(length, global_batch=global_batch, pieces=min(pieces, global_batch), epochs=1)
    for number in range(plan.end or 0):
        whole, total = plan.pieces(number, 0, 1)
        assert [piece.index for piece in whole] == list(range(len(whole)))
        assert sum(piece.samples for piece in whole) == total
        shared = [piece for rank in range(size) for piece in plan.pieces(number, rank, size)[0] if piece.samples]
        assert shared == list(whole)
        if 2 * pieces <= global_batch and total > 1:
            assert min(piece.samples for piece in whole) > 1


def test_epochs_have_orders_of_their_own_and_a_seed_has_the_same_one_for_ever() -> None:
    assert [Order(10, 1, 0).at(place) for place in range(10)] == [6, 3, 7, 8, 0, 4, 2, 1, 5, 9]
    assert [Order(10, 1, 1).at(place) for place in range(10)] != [Order(10, 1, 0).at(place) for place in range(10)]


@given(st.integers(1, 3000), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_an_order_has_each_sample_once(length: int, seed: int, epoch: int) -> None:
    order = Order(length, seed, epoch)
    assert sorted(map(order.at, range(length))) == list(range(length))


def test_an_order_of_a_billion_samples_takes_no_memory_and_has_no_place_behind_its_end() -> None:
    order = Order(10**9, 0, 0)
    assert len({order.at(place) for place in range(1000)}) == 1000
    with pytest.raises(IndexError):
        order.at(10**9)
    with pytest.raises(ValueError, match="no order"):
        Order(0, 0, 0)


def test_every_place_of_a_short_order_is_as_likely_for_every_sample() -> None:
    counts = [[0] * 6 for _ in range(6)]
    for seed in range(3000):
        for place in range(6):
            counts[place][Order(6, seed, 0).at(place)] += 1
    # 500 expected; five standard deviations of the count in one of 36 cells
    assert all(abs(count - 500) < 103 for row in counts for count in row)


def test_without_shuffling_samples_come_as_they_are_and_the_rest_of_an_epoch_may_be_left_out() -> None:
    plan = elastic.batches(range(7), global_batch=3, shuffle=False, epochs=2, drop_last=True)
    steps = shares(plan, 1)
    assert [seen(steps, index) for index in range(4)] == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]]
    assert len(plan) == 4


def test_regression_steps_without_an_end_had_the_length_0_so_that_a_loader_of_them_was_false() -> None:
    plan = elastic.batches(4, global_batch=4)
    at(step=10**6)
    assert next(plan.steps()).epoch == 10**6
    with pytest.raises(TypeError, match=pattern("elastic.sampling.no_length")):
        len(plan)


@given(PLANS, SIZES, st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_a_length_is_the_number_of_parts_that_are_left(plan: Batches, size: int, step: int) -> None:
    for rank, mine in enumerate(shares(plan, size, step)):
        at(rank, size, step)
        assert len(plan) == sum(len(one.parts) for one in mine)


def test_regression_the_length_of_a_long_training_was_counted_step_by_step() -> None:
    at()
    plan = Batches(10**12, global_batch=64, epochs=10**6)
    assert len(plan) == 10**18 // 64
    next(plan.steps())
    at(step=5)
    # Of batches beside the training's it is the whole length, wherever training is.
    assert (len(plan), len(Batches(100, global_batch=30, epochs=1))) == (10**18 // 64 - 5, 4)


@given(st.integers(1, 3000), st.integers(0, 9), st.data())
@settings(max_examples=30, deadline=None)
def test_places_that_are_found_together_have_the_samples_that_each_has(length: int, seed: int, data: Any) -> None:
    order = Order(length, seed, 0)
    edges = [sorted(data.draw(st.tuples(*[st.integers(0, length)] * 2))) for _ in range(3)]
    ranges = [range(*edge) for edge in edges]
    assert order.all_at(ranges) == [order.at(place) for places in ranges for place in places]
    with pytest.raises(IndexError):
        order.all_at([range(length + 1)])


def test_places_are_found_one_by_one_where_there_is_no_numpy_or_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = Order(1 << 40, 0, 0)
    assert huge.all_at([range(20)]) == [huge.at(place) for place in range(20)]
    together = Order(1000, 0, 0).all_at([range(1000)])
    monkeypatch.setattr("elastic.script.permutation._numpy", lambda: None)
    assert Order(1000, 0, 0).all_at([range(1000)]) == together


def test_regression_indices_were_worked_out_one_by_one_in_the_process_that_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Order, "at", None)
    at()
    assert len(next(iter(Batches(10**6, global_batch=4096, epochs=1)))) == 4096


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": 0, "global_batch": 1}, "dataset is 0"),
        ({"dataset": 5, "global_batch": 0}, "global_batch is 0"),
        ({"dataset": 5, "global_batch": 2.5}, "global_batch is 2.5"),
        ({"dataset": 5, "global_batch": 2, "micro_batch": 0}, "micro_batch is 0"),
        ({"dataset": 5, "global_batch": 2, "epochs": -1}, "epochs is -1"),
        ({"dataset": 5, "global_batch": 6, "drop_last": True}, pattern("elastic.sampling.too_few_samples")),
    ],
)
def test_what_cannot_be_cut_into_steps_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        elastic.batches(**options)
    assert "\n" not in str(refused.value)


def test_a_step_that_is_left_before_its_last_part_is_an_error() -> None:
    at()
    steps = elastic.batches(8, global_batch=4, micro_batch=2).steps()
    for part in next(steps):
        assert not part.last
        break
    with pytest.raises(UsageError, match=pattern("elastic.sampling.step_left", taken=1, pieces=2)):
        next(steps)


class Loader:
    """What a DataLoader does with a batch sampler."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[str]:
        indices = iter(self.batch_sampler)
        return (",".join(map(str, part)) for part in indices)


def test_a_loader_brings_the_data_of_every_part_from_the_present_step_on() -> None:
    plan = elastic.batches(8, global_batch=4, micro_batch=2, shuffle=False, epochs=2)
    done = [1]
    ranks.use(ranks.World(lambda: 0, lambda: 1, lambda: done[0]))
    found = []
    for step in plan.steps(Loader(plan)):
        found.append([part.data for part in step])
        done[0] += 1
    assert found == [["4,5", "6,7"], ["0,1", "2,3"], ["4,5", "6,7"]]
    assert [[part.data for part in step] for step in plan.steps(Loader(plan), start=3)] == [["4,5", "6,7"]]


def test_a_loader_over_other_batches_is_refused_and_one_that_ends_too_early_as_well() -> None:
    at()
    plan = elastic.batches(8, global_batch=4)
    with pytest.raises(UsageError, match="batch_sampler=batches"):
        next(plan.steps(Loader(elastic.batches(8, global_batch=2))))
    with pytest.raises(UsageError, match="ended before"):
        [list(step) for step in plan.steps(iter(["a"]), start=0)]


class Model:
    def no_sync(self) -> str:
        return "gathers"


def test_gradients_are_exchanged_in_the_last_part_alone() -> None:
    at()
    parts = list(next(elastic.batches(8, global_batch=4, micro_batch=2).steps()))
    assert parts[0].sync(Model()) == "gathers"  # type: ignore[comparison-overlap]
    for context in (parts[1].sync(Model()), parts[0].sync(object())):
        with context:
            pass


def test_a_world_that_changes_in_one_process_has_its_share_from_the_next_walk_on() -> None:
    plan = elastic.batches(8, global_batch=4, shuffle=False)
    at(1, 2)
    assert [part.data for part in next(plan.steps())] == [[2, 3]]
    at(0, 1, 1)
    assert [part.data for part in next(plan.steps())] == [[4, 5, 6, 7]]


def test_batches_with_an_end_tell_how_many_steps_there_are_unless_the_script_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = driver_link.current()
    at()
    next(Batches(100, global_batch=30, epochs=None).steps())
    assert mine.total_steps is None
    mine.plan = None
    next(Batches(100, global_batch=30, epochs=3).steps())
    assert mine.total_steps == 12
    mine.plan = None
    elastic.step(samples=1, total_steps=500)
    next(Batches(100, global_batch=30, epochs=3).steps())
    assert mine.total_steps == 500


# -- what would train on other data without a word ---


def walked(plan: Batches, calls: int) -> list[int]:
    """The steps of a script that calls elastic.step so often in each."""
    done, found = [0], []
    ranks.use(ranks.World(lambda: 0, lambda: 1, lambda: done[0]))
    for step in plan.steps():
        list(step)
        found.append(step.number)
        done[0] += calls
    return found


@pytest.mark.parametrize("calls", [0, 4])
def test_regression_a_step_that_was_not_counted_once_had_the_next_start_at_other_samples(calls: int) -> None:
    plan = Batches(96, global_batch=8, micro_batch=2, epochs=1)
    with pytest.raises(UsageError, match=pattern("elastic.sampling.not_counted", calls=calls, number=0)):
        walked(plan, calls)
    assert walked(plan, 1) == list(range(12))


def test_steps_that_a_framework_counts_are_not_the_scripts_to_count() -> None:
    ranks.use(ranks.World(lambda: 0, lambda: 1, lambda: 0, by_script=False))
    assert len([list(step) for step in Batches(8, global_batch=4, epochs=1).steps()]) == 2


PLAN = {"dataset": 48, "global_batch": 8, "seed": 1, "drop_last": False}


@pytest.mark.parametrize(
    "other", [{"dataset": 49}, {"global_batch": 16}, {"seed": 2}, {"shuffle": False}, {"drop_last": True}], ids=str
)
def test_regression_a_checkpoint_of_a_training_with_other_batches_was_gone_on_from_at_other_samples(
    other: dict[str, Any],
) -> None:
    at(step=2)
    driver_link.current().saved_plan = Batches(**PLAN).plan  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=pattern("elastic.sampling.other_saved")) as refused:
        next(Batches(**PLAN | other).steps())  # type: ignore[arg-type]
    [name] = other
    assert name.replace("dataset", "length") in str(refused.value)
    # How a share is cut, and how many epochs there are, moves no sample.
    assert next(Batches(**PLAN, micro_batch=2, epochs=9).steps()).number == 2  # type: ignore[arg-type]


def test_a_checkpoint_from_before_plans_were_kept_is_gone_on_from() -> None:
    at(step=2)
    assert next(Batches(**PLAN).steps()).number == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["steps", "loader", "sampler"])
def test_regression_batches_of_an_evaluation_began_at_the_trainings_step_and_had_no_sample(way: str) -> None:
    training, test = Batches(1000, global_batch=10, epochs=3), Batches(100, global_batch=10, epochs=1, shuffle=False)
    at()
    next(training.steps())
    at(step=40)
    with pytest.raises(UsageError, match=pattern("elastic.sampling.other_training")):
        next({"steps": test.steps, "loader": lambda: test.steps(Loader(test)), "sampler": lambda: iter(test)}[way]())
    found = [part.data for step in test.steps(start=0) for part in step]
    assert [index for part in found for index in part] == list(range(100))
    # An evaluation does not say when training ends, and the same batches made anew are the training's still.
    assert driver_link.current().total_steps == 300
    assert next(Batches(1000, global_batch=10, epochs=3).steps()).number == 40


def test_regression_batches_that_ended_before_the_trainings_step_had_no_sample_and_said_nothing() -> None:
    at(step=40)
    with pytest.raises(UsageError, match=pattern("elastic.sampling.ended_before", step=40, end=10)):
        next(Batches(100, global_batch=10, epochs=1).steps())
    at(step=10)
    assert list(Batches(100, global_batch=10, epochs=1).steps()) == []
