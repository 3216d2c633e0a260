"""Training over several ranks in this process alone: real meshes, and replicas without a reducer."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from sizing.tracer import torch_internals
from sizing.tracer.allocations import GRADIENTS

_COPIES_INPUT = ("_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_")
_COPIES_OUTPUT = ("_allgather_base_", "allgather_into_tensor_coalesced_")


def stand_alone(gpus: int, tracker: Any) -> None:
    """Join a group of `gpus` ranks that do nothing, as rank 0, and replace functions that need the others."""
    torch_internals.join_fake_group(gpus)
    distributed: Any = torch.distributed
    for name in ("init_process_group", "destroy_process_group", "barrier", "broadcast_object_list"):
        setattr(distributed, name, _nothing)
    real_meshes(tracker)
    replicas(tracker)


def real_meshes(tracker: Any) -> None:
    """Let device meshes have real numbers, and let the tracker ignore the work on shardings."""
    torch_internals.shield_sharding(tracker)
    for holder in torch_internals.meshes():
        for name, value in list(vars(holder).items()):
            public = isinstance(holder, type) and not name.startswith("_")
            if isinstance(value, types.FunctionType) and (public or name in _MESH):
                setattr(holder, name, _real(value))


_MESH = (
    "init_device_mesh",
    "__init__",
    "__getitem__",
    "_flatten",
    "_unflatten",
    "_concatenate",
    "_get_or_create_default_group",
)


def replicas(tracker: Any) -> None:
    """Replace torch's DistributedDataParallel by the one here, before any code imports it by name."""

    class Replica(DistributedDataParallel):
        watch = tracker

    parallel: Any = torch.nn.parallel
    parallel.DistributedDataParallel = parallel.distributed.DistributedDataParallel = Replica


def join_when_asked(tracker: Any) -> None:
    """Let a step on one GPU join a group of one when it calls init_process_group."""
    replicas(tracker)
    whole: Any = torch.nn.DataParallel
    whole.forward = lambda self, *args, **kwargs: self.module(*args, **kwargs)  # one GPU takes the whole batch
    distributed: Any = torch.distributed
    distributed.init_process_group = lambda *args, **kwargs: stand_alone(1, tracker)


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _real(function: Any) -> Any:
    """Wrap a function to run with real tensors, because a mesh is a tensor of the ranks' numbers."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch_internals.without_modes():
            return function(*args, **kwargs)

    return call


class DistributedDataParallel(torch.nn.Module):
    """A replica: buckets hold its gradients a second time, and each backward pass gives them to an all-reduce."""

    watch: Any = None

    def __init__(self, module: Any, *args: Any, gradient_as_bucket_view: bool = False, **kwargs: Any) -> None:
        super().__init__()
        self.module = module
        self.require_backward_grad_sync = True
        sizes: Any = {}
        for value in module.parameters():
            if value.requires_grad:
                key = value.dtype, value.device
                sizes[key] = sizes.get(key, 0) + value.numel()
        buckets = {key: torch.empty(size, dtype=key[0], device=key[1]) for key, size in sizes.items()}
        self._bytes = sum(bucket.numel() * bucket.element_size() for bucket in buckets.values())
        self._buckets = list(buckets.values())
        for bucket in self._buckets:
            self.watch.label(bucket, GRADIENTS)
        if gradient_as_bucket_view:
            self._put_gradients_into(buckets)

    def _put_gradients_into(self, buckets: Any) -> None:
        """Let each gradient move into its place in a bucket as soon as it is computed."""
        ends = dict.fromkeys(buckets, 0)
        for value in filter(lambda each: each.requires_grad, self.module.parameters()):
            key = value.dtype, value.device
            place = buckets[key][ends[key] : ends[key] + value.numel()].view(value.shape)
            ends[key] += value.numel()

            def move(parameter: Any, place: Any = place) -> None:
                if self.require_backward_grad_sync:
                    parameter.grad = place

            value.register_post_accumulate_grad_hook(move)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if self.require_backward_grad_sync and torch.is_grad_enabled():
            self.watch.work.hand("all_reduce", self._bytes)
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Any:
        """Return a context in which gradients accumulate and are not reduced."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, *args: Any, **kwargs: Any) -> None:
        """Ignore the hook: no gradients are sent."""


def gloo_buffers(ledger: Any) -> dict[Any, Callable[..., Any]]:
    """Map collectives to functions that call them and record the copy that gloo makes of the input or the output.

    Collectives of CPUs are gloo's; NCCL has its buffers outside torch.
    """

    def copying(place: int) -> Callable[..., Any]:
        def call(func: Any, args: Any, kwargs: Any) -> Any:
            out = func(*args, **kwargs)
            copied = sum(each.numel() * each.element_size() for each in torch_internals.tensors_in(args[place]))
            ledger.scratch(copied, False)
            return out

        return call

    found: dict[Any, Callable[..., Any]] = {}
    for names, place in ((_COPIES_INPUT, 1), (_COPIES_OUTPUT, 0)):
        for name in names:
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:
                found[packet.default] = copying(place)
    return found
