"""A record of all storages with their kinds and lifetimes, which gives the peak of the memory by kind."""

from __future__ import annotations

PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARY = range(5)
NAMES = ("parameters", "gradients", "optimizer", "activations", "temporary")


class Allocation:
    """One storage: its bytes, the events at which it was born and died, its kind, and whether it was on the GPU.

    The kind is known late (activations are only recognised when the backward pass begins), and holds for the whole
    life. `node` is the number of the backward function that made it.
    """

    __slots__ = ("born", "bytes", "died", "kind", "node", "on_gpu", "recomputed")

    def __init__(self, size: int, born: int, on_gpu: bool, recomputed: bool) -> None:
        self.bytes = size
        self.born = born
        self.died: int | None = None
        self.node: int | None = None
        self.kind = TEMPORARY
        self.on_gpu = on_gpu
        self.recomputed = recomputed


class AllocationLog:
    """All storages that ever existed, in order of birth; the allocator rounds sizes up to multiples of `granule`."""

    def __init__(self, granule: int = 1) -> None:
        self.granule = granule
        self.records: list[Allocation] = []
        self.now = 0

    def rounded(self, size: int) -> int:
        """Return the bytes that the allocator takes for `size` bytes."""
        return -(-size // self.granule) * self.granule

    def open(self, size: int, on_gpu: bool, recomputed: bool = False) -> Allocation:
        """Record the birth of a storage."""
        self.now += 1
        record = Allocation(self.rounded(size), self.now, on_gpu, recomputed)
        self.records.append(record)
        return record

    def close(self, record: Allocation) -> None:
        """Record the death of a storage."""
        self.now += 1
        record.died = self.now

    def scratch(self, size: int, on_gpu: bool) -> None:
        """Record memory that a kernel took for itself while it ran."""
        self.close(self.open(size, on_gpu))

    def label(self, record: Allocation, kind: int) -> None:
        """Set the kind of a storage; the stronger kind wins (parameters first, temporary last)."""
        record.kind = min(record.kind, kind)

    def keep(self) -> None:
        """Label storages without another kind as activations, because the backward pass begins now."""
        for record in self.records:
            if record.died is None:
                self.label(record, ACTIVATIONS)

    def peak(self, gpu_only: bool) -> tuple[int, dict[str, int]]:
        """Return the most bytes at once, and the bytes of each kind at that moment."""
        counted = [record for record in self.records if record.bytes and (record.on_gpu or not gpu_only)]
        changes: list[tuple[int, int]] = []
        for record in counted:
            changes.append((record.born, record.bytes))
            if record.died is not None:
                changes.append((record.died, -record.bytes))
        changes.sort()
        held = most = when = 0
        for moment, change in changes:
            held += change
            if held > most:
                most, when = held, moment
        kinds = [0] * len(NAMES)
        for record in counted:
            if record.born <= when and (record.died is None or record.died > when):
                kinds[record.kind] += record.bytes
        return most, {name: kinds[kind] for kind, name in enumerate(NAMES)}
