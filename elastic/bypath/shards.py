"""What one worker writes of a state: copies of its shares, and the plan by which they become files."""

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

# It is said of every save and load of one worker alone, which is what that is meant for.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

SKELETON = "bft"
RNG = "bft.rng."


class Buffers:
    """Memory on the host that copies are made into, kept for the next copy of the same shape and type.

    The first touch of fresh memory costs more than the copy. A GPU is copied from into pinned memory.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[torch.Size, torch.dtype, bool], list[torch.Tensor]] = defaultdict(list)

    def copies(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies of all tensors on the host, complete when this returns."""
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
        """Takes copies back that are not looked at any more."""
        for target in copies.values():
            self._free[(target.shape, target.dtype, target.is_pinned())].append(target)

    def drop(self) -> None:
        """Frees what is not in use: the next state has other shapes."""
        self._free.clear()


def _empty(like: torch.Tensor, pinned: bool) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=pinned)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this worker has."""
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part.detach()


class Planner(DefaultSavePlanner):
    """Plans with the tensors that the script trains on, while it is called, and then writes the copies of them."""

    def __init__(self, shares: Mapping[str, torch.Tensor], objects: Mapping[str, Any]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        super().set_up_planner({**shares, **objects})
        self._mine = super().create_local_plan()
        self._data: Mapping[str, Any] = {}
        self.state_dict = {}  # or the script's tensors would live as long as this

    def fill(self, data: Mapping[str, Any]) -> None:
        """Gives it what to write, by name."""
        self._data = data

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        """As upstream; it was done in the thread that trains."""
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        """As upstream; it was made in the thread that trains."""
        return self._mine

    def lookup_object(self, index: MetadataIndex) -> Any:
        """What to write at a place of the plan."""
        # Brought to the host here: upstream would wait for this thread's device only, and the tensor may be on another.
        value = self._data[index.fqn]
        return value.cpu() if isinstance(value, torch.Tensor) else value
