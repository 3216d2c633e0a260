"""The remaining work of a profile: shards that are not in the cache, reported as they complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sizing.base.errors import SizingError, UsageError
from sizing.cells import stages
from sizing.cells.cell import Cell
from sizing.cells.required import micro_batches_of, more_micro_batches, wanted
from sizing.cells.shards import ShardProfile, StageShard
from sizing.model.graph import Graph
from sizing.profiles import profile
from sizing.profiles.profile import NO_PLAN, Device, Result, Setting, Source, Unfit, device_name
from sizing.profiles.store import Store, by_files, by_sizes

_START_S = 8.0  # to start a process with torch and read the model in it
_FLOPS = {"cpu": 1e10, "cuda": 1e13}  # per second; only for the first guess of the duration


class ProfileWork:
    """Profiles shards that are not in the cache, reports each, and stores it at once."""

    def __init__(
        self,
        store: Store,
        source: Source,
        graph: Graph,
        setting: Setting,
        device: Device,
        python: str,
        timeout_s: float,
        again: bool,
        say: Callable[[str], None],
    ) -> None:
        self.store, self.source, self.graph, self.setting, self.device = store, source, graph, setting, device
        self.python, self.timeout_s, self.again = python, timeout_s, again
        self._say = say
        self.results: dict[StageShard, Result] = {}
        self.notes: dict[str, None] = {}
        self.files: tuple[tuple[str, str], ...] = ()
        self._tensor = True
        self._out: set[int] = set()  # tensor-parallel sizes that the model cannot be cut over

    def run(self, shards: Sequence[StageShard]) -> None:
        """Profile shards, those without tensor parallelism first: an error in these ends the command."""
        known = {} if self.again else self._known(shards)
        self.results.update(known)
        for tp in sorted({each.tp for each in shards if each.tp > 1}):
            if self._tensor and not self.again and (why := self._refused(tp)):
                self._leave_out(tp, why)
        shards = [each for each in shards if each.tp not in self._out]
        todo = [each for each in shards if each not in known and (each.tp == 1 or self._tensor)]
        if not todo:
            if known:
                self._say(f"{_shards(len(known))}, all in the cache")
            return
        cached = f", {len(known)} {'is' if len(known) == 1 else 'are'} in the cache" if known else ""
        self._say(f"{_shards(len(todo))} to profile{cached}; about {self._guess_s(todo):.0f} s (assumed)")
        self.store.prepare()
        done = 0
        for tp in sorted({each.tp for each in todo}):
            mine = [each for each in todo if each.tp == tp]
            try:
                done += self._profile(mine, done, len(todo))
            except SizingError as error:
                if tp == 1:
                    raise
                self._leave_out(tp, str(error))
                if isinstance(error, UsageError) and (model := self.store.model(self.source)) is not None:
                    self.store.refuse(model, tp, str(error))
                if not self._tensor:
                    return

    def _refused(self, tp: int) -> str:
        """Return the cached reason why the model cannot be split over so many tensor-parallel ranks, or ""."""
        model = self.store.model(self.source)
        return "" if model is None else self.store.refused(model, tp)

    def _leave_out(self, tp: int, why: str) -> None:
        if tp not in self._out:
            self.notes[f"tensor parallelism over {tp} GPUs is left out: {why}"] = None
            self._say(f"tp={tp} is left out: {why}")
        self._out.add(tp)
        self._tensor = self._tensor and not why.startswith(NO_PLAN)

    def _profile(self, shards: Sequence[StageShard], done: int, of: int) -> int:
        began, count = time.monotonic(), 0

        def tell(result: Result, files: Sequence[tuple[str, str]]) -> None:
            nonlocal count
            count += 1
            self.results[result.shard] = result
            self.files = tuple(files) or self.files
            put(self.store, self.source, files, self.setting, [result])
            self._say(f"{done + count}/{of} {_line(result)} ({time.monotonic() - began:.0f} s)")

        found = profile.profiled(
            self.source,
            shards,
            self.setting,
            graph=self.graph,
            device=self.device,
            python=self.python,
            timeout_s=self.timeout_s,
            done=tell,
        )
        self.notes.update(dict.fromkeys(found.notes))
        return count

    def _known(self, shards: Sequence[StageShard]) -> dict[StageShard, Result]:
        """Return the cached results of these shards for the device that would be used."""
        model = self.store.model(self.source)
        if model is None:
            return {}
        if not self.store.devices(model):
            return {}
        version, kind = profile.torch_of(self.python, self.device)
        if self.device == "cuda" and kind == "cpu":
            return {}  # there may be results for this CPU, but CUDA was asked for
        found = self.store.all(model, device_name(kind), self.setting, version)
        self.files = model.files
        return {each: found[each] for each in shards if each in found}

    def between(self, shards: Sequence[StageShard]) -> list[StageShard]:
        """Return the hybrid shards of stages that have an extreme which does not fit in memory."""
        full = {(each.first, each.last) for each, result in self.results.items() if isinstance(result, Unfit)}
        return [each for each in shards if (each.first, each.last) in full and each not in self.results]

    def smaller(self, cell: Cell, global_batch: int) -> None:
        """Split the batch into more micro-batches as long as no shard of a cell fits in memory."""
        count: int | None = micro_batches_of(cell, global_batch)
        while count is not None:
            shards = wanted(cell, global_batch, micro_batches=count)
            if missing := [each for each in shards if each not in self.results and (each.tp == 1 or self._tensor)]:
                self.run(missing)
            if any(isinstance(self.results.get(each), ShardProfile) for each in shards):
                return
            count = more_micro_batches(cell, global_batch, count)

    def _guess_s(self, shards: Sequence[StageShard]) -> float:
        rate = _FLOPS["cuda" if self.device == "cuda" else "cpu"]
        before = self.graph.flops_before
        passes = 4 + self.setting.rounds
        flops = sum(
            (before[each.last + 1] - before[each.first]) * each.batch / self.graph.batch / each.tp for each in shards
        )
        return _START_S * len({(each.tp, each.batch) for each in shards}) + passes * flops / rate

    def to_json(self) -> dict[str, Any]:
        """Return the output of --json."""
        results = list(self.results.values())
        return {
            "model": self.graph.model,
            "files": list(self.files),
            "setting": asdict(self.setting),
            "profiles": [asdict(each) for each in results if not isinstance(each, Unfit)],
            "unfit": [asdict(each) for each in results if isinstance(each, Unfit)],
            "notes": list(self.notes),
        }


def put(
    store: Store, source: Source, files: Sequence[tuple[str, str]], setting: Setting, results: Sequence[Result]
) -> None:
    """Store results for a model, which is identified by its files or its sizes."""
    known = by_files(source, files) if isinstance(source, str) else by_sizes(source)
    store.put(known, setting, results)


def _shards(count: int) -> str:
    return f"{count} shard{'' if count == 1 else 's'}"


def _line(result: Result) -> str:
    shard = result.shard
    what = f"operators {shard.first} to {shard.last}, batch {shard.batch}, tp {shard.tp}"
    if isinstance(result, Unfit):
        return f"{what}: does not fit the memory of {result.device}"
    return f"{what}: {ms(result.compute_s.value)} (of {result.rounds} rounds)"


def ms(seconds: float) -> str:
    """Format milliseconds."""
    return f"{1000 * seconds:.3g} ms"


def wanted_of(
    graph: Graph, gpus: int, counts: Sequence[int] | None, global_batch: int, *, hybrids: bool
) -> tuple[StageShard, ...]:
    """Return the distinct shards of all cells; raises UsageError if there are none."""
    found: dict[StageShard, None] = {}
    for cell in stages.cells(graph, gpus, "", counts):
        found.update(dict.fromkeys(wanted(cell, global_batch, hybrids=hybrids)))
    if not found:
        raise UsageError(f"a global batch of {global_batch} cannot be cut over {gpus} GPUs: take a multiple of {gpus}")
    return tuple(found)
