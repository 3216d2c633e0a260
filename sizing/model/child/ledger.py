"""Which storages lived when, and of what kind they were: the peak of the memory, and what it consisted of."""

from __future__ import annotations

PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARY = range(5)
NAMES = ("parameters", "gradients", "optimizer", "activations", "temporary")


class Record:
    """One storage: its bytes, from which event to which it lived, its kind, and whether it lay on the GPU.

    A kind is known late (what forward keeps is seen when backward begins), and holds for the whole life. `node` is the
    number of the backward function that made it.
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


class Ledger:
    """All storages that were ever there, in the order of their birth; `granule` is what an allocator rounds up to."""

    def __init__(self, granule: int = 1) -> None:
        self.granule = granule
        self.records: list[Record] = []
        self.now = 0

    def rounded(self, size: int) -> int:
        """What the allocator takes for so many bytes."""
        return -(-size // self.granule) * self.granule

    def open(self, size: int, on_gpu: bool, recomputed: bool = False) -> Record:
        """Write down a storage that is there from now on."""
        self.now += 1
        record = Record(self.rounded(size), self.now, on_gpu, recomputed)
        self.records.append(record)
        return record

    def close(self, record: Record) -> None:
        """Write down that a storage is gone."""
        self.now += 1
        record.died = self.now

    def scratch(self, size: int, on_gpu: bool) -> None:
        """Write down what a kernel took for itself while it ran."""
        self.close(self.open(size, on_gpu))

    def label(self, record: Record, kind: int) -> None:
        """Say of what kind a storage is; the stronger kind stays (parameters before all, temporary last)."""
        record.kind = min(record.kind, kind)

    def keep(self) -> None:
        """Backward begins: what forward left behind without another name is what it keeps for that."""
        for record in self.records:
            if record.died is None:
                self.label(record, ACTIVATIONS)

    def peak(self, gpu_only: bool) -> tuple[int, dict[str, int]]:
        """The most bytes at once, and those of each kind at that moment."""
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
