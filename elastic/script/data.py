"""The same batches on any number of workers: a constant global batch, in an order that only the step decides.

Step k of a training sees the same samples on any nodes and any number of workers. Each worker has its share of them, in
pieces that fit its memory, and weights its losses so that the averaged gradient is the mean over the global batch. The
position after a resize is the number of steps done: no sampler state is saved.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from elastic.base.errors import UsageError
from elastic.script import ranks
from elastic.script.permutation import Order
from elastic.worker import driver_link

_BLOCK = 16384
"""Samples to find at a time, a few milliseconds now and then; one by one, each sample would take microseconds."""


@dataclass(frozen=True)
class Part:
    """A piece of one worker's share that is computed at once.

    `data` are the indices of its samples, or the batch that the DataLoader made of them. Call `backward` on the mean
    loss over the piece times `weight`. Gradients are exchanged in the `last` part of a step.
    """

    data: Any
    samples: int
    weight: float
    last: bool
    adding: Callable[[Any], contextlib.AbstractContextManager[Any]] | None = None

    def sync(self, model: Any) -> contextlib.AbstractContextManager[Any]:
        """Returns the context to compute the piece in: it exchanges gradients in the last part only.

        For that `model` needs `no_sync`, as DistributedDataParallel has; other models get a context that does nothing.
        With `pieces` the gradients are added up in the order of all workers' pieces.
        """
        if self.adding is not None:
            return self.adding(model)
        if self.last or not hasattr(model, "no_sync"):
            return contextlib.nullcontext()
        gathering: contextlib.AbstractContextManager[Any] = model.no_sync()
        return gathering


@dataclass(frozen=True)
class Step:
    """One worker's work in one step; iterate over it to get its parts.

    `number` counts all steps from 0, `epoch` passes; `samples` are this worker's, `global_samples` all workers'.
    """

    number: int
    epoch: int
    samples: int
    global_samples: int
    parts: _Parts

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Places [`begin`, `end`) of an epoch that a worker computes in a step; an idle worker's piece does not count."""

    begin: int
    end: int
    idle: bool = False
    index: int = 0

    @property
    def samples(self) -> int:
        """The number of samples that count."""
        return 0 if self.idle else self.end - self.begin


class Batches:
    """A dataset, cut into the same steps for any number of workers; create it alike on every worker.

    It is also a batch sampler, which gives a list of indices for each part from the current step on. So
    `DataLoader(dataset, batch_sampler=batches)` prefetches as usual, and `steps(loader)` combines the two.
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        global_batch: int,
        micro_batch: int | None = None,
        pieces: int | None = None,
        seed: int = 0,
        epochs: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        """Set what is cut, and how.

        Args:
            dataset: an object with a length, or the length itself.
            global_batch: the number of samples of a step, over all workers.
            micro_batch: the most samples that a worker computes at once. A larger share is computed in several parts,
                and gradients are exchanged after the last. Without it a worker computes its whole share at once.
            pieces: the number of pieces to cut each global batch into, on any number of workers. Each is computed by
                itself, so under torchrun the weights are the same to the last bit. Needs `part.sync`, and seeds the
                random numbers of each piece. Use no more workers than pieces, ideally a divisor of their number.
            seed: the seed of the order, which differs from epoch to epoch.
            epochs: the number of passes; without it the steps do not end.
            shuffle: False takes the samples in their own order.
            drop_last: leave out samples of an epoch that fill no global batch; else its last step is smaller.

        Raises UsageError for a number that is not a positive integer, a dataset smaller than one global batch with
        `drop_last`, more pieces than samples in a global batch, and `pieces` together with `micro_batch`.
        """
        self._length = dataset if isinstance(dataset, int) else len(dataset)
        for name, value in {
            "dataset": self._length,
            "global_batch": global_batch,
            "micro_batch": 1 if micro_batch is None else micro_batch,
            "pieces": 1 if pieces is None else pieces,
            "epochs": 1 if epochs is None else epochs,
        }.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"elastic.batches: {name} is {value!r}; it has to be a whole number of at least 1")
        if drop_last and self._length < global_batch:
            raise UsageError(
                f"elastic.batches: {self._length} samples do not fill one global batch of {global_batch}, and "
                "drop_last leaves out what does not; make the batch smaller"
            )
        if pieces is not None and (micro_batch is not None or pieces > global_batch):
            raise UsageError(
                f"elastic.batches: pieces={pieces} cuts a global batch of {global_batch}; give no more pieces than "
                "that, and no micro_batch beside it: a piece is what is computed at once"
            )
        self._global_batch = global_batch
        self._micro_batch = micro_batch
        self._pieces = pieces
        self._seed = seed
        self._epochs = epochs
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._begin: int | None = None  # set while a loader is asked to begin
        self.a_step = 1
        """The number of these steps that the training counts as one, if a framework accumulates their gradients."""
        whole, rest = divmod(self._length, global_batch)
        self.steps_per_epoch = whole + (rest > 0 and not drop_last)

    def steps(self, loader: Iterable[Any] | None = None, *, start: int | None = None) -> Iterator[Step]:
        """Returns the steps from the current one on, or from `start`, with the data of `loader` or else with indices.

        Go through each step to its last part, and call elastic.step once for it. With `start` the steps are those of an
        evaluation, say, and not counted. Raises UsageError for a loader that is not over these batches, for steps left
        early or not counted, and if the training is at other batches or beyond the last of these.
        """
        if loader is not None and getattr(loader, "batch_sampler", self) is not self:
            raise UsageError("elastic.batches: the loader has batches of its own; make it with batch_sampler=batches")
        walk = _Walk(self, self._at() if start is None else start)
        data: Iterator[Any] = walk.indices()
        if loader is not None:
            self._begin = walk.begin
            try:
                data = iter(loader)
            finally:
                self._begin = None
        adding = None if self._pieces is None else _Adding(self._pieces, self._seed, walk.rank, walk.size)
        for number, pieces, total in walk.steps():
            if adding is not None:
                adding.begin(number, _sharing(total, self._global_batch, adding.most))
            parts = _Parts(data, pieces, walk.size, total, adding)
            if start is None:
                ranks.current().took(total)
            yield Step(number, number // self.steps_per_epoch, sum(piece.samples for piece in pieces), total, parts)
            parts.check()
            if start is None:
                _check_counted(number)

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the indices of one part after another, as a DataLoader asks of a batch sampler."""
        return _Walk(self, self._at()).indices()

    def __len__(self) -> int:
        """The number of parts left for this worker, or all of an evaluation's; raises TypeError without `epochs`."""
        if self.end is None:
            raise TypeError("elastic.batches: without epochs= the steps do not end, so they have no length")
        now, plan = ranks.current(), driver_link.current().plan
        begin = now.step() * self.a_step if self._begin is None else self._begin
        if plan is not None and _difference(self.plan, plan):
            begin = 0
        steps = max(0, self.end - begin)
        # The last step of each epoch may have fewer samples than the others.
        short = -(-steps // self.steps_per_epoch)
        of_whole, of_short = (len(self.pieces(number, now.rank(), now.size())[0]) for number in (0, -1))
        return (steps - short) * of_whole + short * of_short

    def _at(self) -> int:
        """Return the training's step, unless a loader was told another one to begin at.

        Raises UsageError if the training or the loaded checkpoint has other batches, or is beyond the last of these.
        """
        if self._begin is not None:
            return self._begin
        now = driver_link.current()
        if now.plan is None:
            if differs := _difference(self.plan, now.saved_plan or {}):
                raise UsageError(
                    f"elastic.batches: the checkpoint is of a training with other batches ({differs}): its step is at "
                    "other samples here; give what it was given, or begin anew without the checkpoint"
                )
            now.plan = self.plan
            if self._counted is not None and now.total_steps is None:  # the script's own number takes precedence
                now.set_total(self._counted)
        elif differs := _difference(self.plan, now.plan):
            raise UsageError(
                f"elastic.batches: others go on at the training's step already ({differs}), and only one dataset can; "
                "go through the batches of an evaluation with steps(start=0), or steps(loader, start=0)"
            )
        step, last = ranks.current().step(), self._counted
        if last is not None and step > last:
            raise UsageError(
                f"elastic.batches: training is at step {step}, and these end at step {last}; go through those of "
                "an evaluation with steps(start=0), or steps(loader, start=0)"
            )
        begin = step * self.a_step
        return begin if self.end is None else min(begin, self.end)

    @property
    def plan(self) -> dict[str, int]:
        """The settings that decide the samples of a step, by the names of the options; saved with each checkpoint."""
        return {
            "length": self._length,
            "global_batch": self._global_batch,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "drop_last": self._drop_last,
            "pieces": self._pieces or 0,
            "accumulated": self.a_step,
        }

    def order(self, epoch: int) -> Order | None:
        """Return the shuffled order of an epoch; None without shuffling."""
        return Order(self._length, self._seed, epoch) if self._shuffle else None

    def pieces(self, number: int, rank: int, size: int) -> tuple[Sequence[_Piece], int]:
        """Return one worker's share of a step, as places in its epoch, and the number of samples of all workers."""
        first = number % self.steps_per_epoch * self._global_batch
        total = min(self._global_batch, self._length - first)
        # Fewer workers share a smaller step: batch normalisation cannot take a piece of one sample.
        sharing = _sharing(total, self._global_batch, self._pieces or size)
        if self._pieces is not None:
            mine = range(*ranks.share(sharing, rank, size))
            some = [(index, ranks.share(total, index, sharing)) for index in mine]
            pieces = tuple(_Piece(first + begin, first + end, index=index) for index, (begin, end) in some)
            return pieces or (_Piece(first, first + total // sharing, idle=True),), total
        begin, end = (first + place for place in ranks.share(total, rank, sharing))
        if rank >= sharing:
            # An idle worker has to take part in the exchange of gradients all the same.
            return (_Piece(first, first + min(2, total, self._micro_batch or 2), idle=True),), total
        most = self._micro_batch or end - begin
        count = -(-(end - begin) // most)
        # Pieces of about equal size: a last one of a single sample would harm batch normalisation.
        edges = [begin + index * (end - begin) // count for index in range(count + 1)]
        return tuple(_Piece(*edge) for edge in pairwise(edges)), total

    @property
    def _counted(self) -> int | None:
        """The number of steps that the training counts until the end."""
        return None if self.end is None else -(-self.end // self.a_step)

    @property
    def end(self) -> int | None:
        """The number of steps in all epochs; None without an end."""
        return None if self._epochs is None else self._epochs * self.steps_per_epoch


class _Walk:
    """One worker's walk through the steps, while the number of workers stays the same."""

    def __init__(self, plan: Batches, begin: int) -> None:
        if begin < 0:
            raise UsageError(f"elastic.batches: there is no step {begin}")
        now = ranks.current()
        self.begin = begin
        self.rank, self.size = now.rank(), now.size()
        self._plan = plan

    def steps(self) -> Iterator[tuple[int, Sequence[_Piece], int]]:
        """Yield each step's number, this worker's pieces, and the number of samples of all workers."""
        number, end = self.begin, self._plan.end
        while end is None or number < end:
            yield (number, *self._plan.pieces(number, self.rank, self.size))
            number += 1

    def indices(self) -> Iterator[list[int]]:
        """Yield the samples of one piece after another."""
        order, of_epoch = None, -1
        for epoch, block in self._blocks():
            if epoch != of_epoch:
                order, of_epoch = self._plan.order(epoch), epoch
            ranges = [range(piece.begin, piece.end) for piece in block]
            if order is None:
                yield from map(list, ranges)
                continue
            samples, taken = order.all_at(ranges), 0
            for places in ranges:
                yield samples[taken : taken + len(places)]
                taken += len(places)

    def _blocks(self) -> Iterator[tuple[int, list[_Piece]]]:
        """Yield an epoch and the pieces of as many of its steps as are drawn together."""
        block: list[_Piece] = []
        epoch, places = 0, 0
        for number, pieces, _ in self.steps():
            at = number // self._plan.steps_per_epoch
            if block and (at != epoch or places >= _BLOCK):
                yield epoch, block
                block, places = [], 0
            epoch = at
            block += pieces
            places += sum(piece.end - piece.begin for piece in pieces)
        if block:
            yield epoch, block


def _sharing(total: int, global_batch: int, pieces: int) -> int:
    """Return the number of pieces of a step of `total` samples; none has a single sample unless full batches' may."""
    return min(pieces, total) if 2 * pieces > global_batch else max(1, min(pieces, total // 2))


class _Adding:
    """The sum of gradients in the order of the pieces, step after step; it imports torch, unlike plain indices."""

    def __init__(self, most: int, seed: int, rank: int, size: int) -> None:
        from elastic.script.pieces import Models, StepCut

        self.most = most
        self._models = Models()
        self._cut = StepCut(0, seed, most, rank, size)
        self._used = False
        as_on = -(-most // -(-most // size))
        if rank == 0 and as_on < size:
            print(f"bft: {most} pieces on {size} workers take as long as on {as_on}", file=sys.stderr, flush=True)

    def begin(self, number: int, count: int) -> None:
        """Begin a step of `count` pieces."""
        self._cut = replace(self._cut, number=number, count=count)
        self._used = False

    def piece(self, piece: _Piece, weight: float, last: bool, model: Any) -> contextlib.AbstractContextManager[None]:
        """Return the context to compute a piece in."""
        self._used = True
        return self._models.of(model).piece(self._cut, piece.index, weight, last)

    def check(self) -> None:
        """Raise UsageError if the script computed no part of the step inside `part.sync`."""
        if not self._used:
            raise UsageError(
                "elastic.batches: pieces= adds up the gradients of each part that is computed inside "
                "`with part.sync(model):`; no part of this step was"
            )


def _check_counted(number: int) -> None:
    """Raise UsageError unless the script counted step `number` exactly once: a resume would begin at the wrong step."""
    now = ranks.current()
    if now.by_script and (calls := now.step() - number) != 1:
        raise UsageError(
            f"elastic.batches: elastic.step was called {calls} times in step {number}: call it once a step, after its "
            "last part, on every worker; where training goes on after a resize is the number of its calls"
        )


def _difference(here: Mapping[str, int], there: Mapping[str, int]) -> str:
    """Describe the settings that differ, of those that both have; "" if none do."""
    return ", ".join(
        f"{name} {there[name]}, here {value}" for name, value in here.items() if there.get(name, value) != value
    )


class _Parts:
    """The parts of one step, each taken from the data on demand."""

    def __init__(
        self, data: Iterator[Any], pieces: Sequence[_Piece], size: int, total: int, adding: _Adding | None
    ) -> None:
        self._adding = adding
        self._data = data
        self._pieces = pieces
        self._size = size
        self._total = total
        self._taken = 0

    def __iter__(self) -> Iterator[Part]:
        while self._taken < len(self._pieces):
            piece = self._pieces[self._taken]
            try:
                data = next(self._data)
            except StopIteration:
                raise UsageError(
                    "elastic.batches: the loader ended before the batches did; make it with batch_sampler=batches"
                ) from None
            self._taken += 1
            last = self._taken == len(self._pieces)
            if self._adding is None:
                yield Part(data, piece.samples, piece.samples * self._size / self._total, last)
            else:
                weight = piece.samples / self._total
                adding = functools.partial(self._adding.piece, piece, weight, last)
                yield Part(data, piece.samples, weight, last, adding)

    def __len__(self) -> int:
        return len(self._pieces)

    def check(self) -> None:
        """Raise UsageError if the script went on before the last part of the step."""
        if self._taken < len(self._pieces):
            raise UsageError(
                f"elastic.batches: a step was left after {self._taken} of its {len(self._pieces)} parts; go through "
                "all of them: the next step's data would be this one's"
            )
        if self._adding is not None:
            self._adding.check()
