"""The number of GPUs that a model is spread over, by kind of parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.base.errors import UsageError


@dataclass(frozen=True, slots=True, order=True)
class Parallel:
    """`dp` replicas, each of `tp` GPUs (tensor parallelism) times `fsdp` GPUs that share its state (ZeRO-3, FSDP).

    The batch of a GPU is the global batch over dp x fsdp. Raises UsageError for a size below 1.
    """

    dp: int = 1
    tp: int = 1
    fsdp: int = 1

    def __post_init__(self) -> None:
        for name, size in (("dp", self.dp), ("tp", self.tp), ("fsdp", self.fsdp)):
            if size < 1:
                raise UsageError(f"{name}={size}: at least 1")

    @property
    def gpus(self) -> int:
        """The number of all GPUs."""
        return self.dp * self.tp * self.fsdp

    @property
    def shares(self) -> int:
        """The number of parts that a global batch is cut into."""
        return self.dp * self.fsdp

    def batch_of(self, global_batch: int) -> int:
        """Return the samples of one GPU (of one tensor-parallel group).

        Raises UsageError if they are not a whole number.
        """
        if global_batch < 1:
            raise UsageError(f"a global batch of {global_batch}: at least 1")
        if global_batch % self.shares:
            raise UsageError(
                f"a global batch of {global_batch} cannot be cut into {self.shares} equal parts "
                f"(dp={self.dp}, fsdp={self.fsdp}); choose a multiple of {self.shares}"
            )
        return global_batch // self.shares


@dataclass(frozen=True, slots=True, order=True)
class RankBatch:
    """The subject of a trace: one rank's batch in a spread."""

    parallel: Parallel
    batch: int

    @property
    def key(self) -> Parallel:
        """The spread as far as memory depends on it: any number of replicas above one equals two."""
        return Parallel(min(self.parallel.dp, 2), self.parallel.tp, self.parallel.fsdp)


Place = tuple[str, int, int, RankBatch]
"""The type of GPUs, the numbers of GPUs and of nodes, and the work of each GPU."""
