"""One worker's part of a state to write: copies of its shares, and the plan that turns them into files."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

# torch warns at every save and load of a single worker, which is intended here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

SKELETON = "bft"
RNG = "bft.rng."


class Buffers:
    """Host memory for copies, kept for the next copy of the same shape and type.

    The first touch of fresh memory costs more than the copy. Copies from a GPU go into pinned memory.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[torch.Size, torch.dtype, bool], list[torch.Tensor]] = defaultdict(list)

    def copies(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy all tensors to the host; the copies are complete when this returns."""
        found, devices = {}, set()
        for name, tensor in tensors.items():
            pinned = tensor.device.type == "cuda"
            free = self._free[(tensor.shape, tensor.dtype, pinned)]
            target = free.pop() if free else _empty(tensor, pinned)
            target.copy_(tensor, non_blocking=pinned)
            if pinned:
                devices.add(tensor.device)
            found[name] = target
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return found

    def give_back(self, copies: Mapping[str, torch.Tensor]) -> None:
        """Take back copies that are not read any more."""
        for target in copies.values():
            self._free[(target.shape, target.dtype, target.is_pinned())].append(target)

    def drop(self) -> None:
        """Free the memory not in use: the next state has other shapes."""
        self._free.clear()


def _empty(like: torch.Tensor, pinned: bool) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=pinned)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this worker has."""
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part.detach()


class CheckpointPlanner(DefaultSavePlanner):
    """A planner that plans with the script's own tensors, while they may be read, and later writes copies."""

    def __init__(self, shares: Mapping[str, torch.Tensor], objects: Mapping[str, Any]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        super().set_up_planner({**shares, **objects})
        self._mine = super().create_local_plan()
        self._data: Mapping[str, Any] = {}
        self.state_dict = {}  # else the script's tensors would live as long as this planner

    def fill(self, data: Mapping[str, Any]) -> None:
        """Set the data to write, by name."""
        self._data = data

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        """Do what is left of upstream's set-up; the rest was done in the thread that trains."""
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        """Return the plan, which was made in the thread that trains."""
        return self._mine

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the data for an entry of the plan."""
        # Copy to the host here: upstream would wait for this thread's device only, and the tensor may be on another.
        value = self._data[index.fqn]
        return value.cpu() if isinstance(value, torch.Tensor) else value
