"""Watches every operator of a step: records its storages in the ledger, and counts its work."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from sizing.tracer import autograd_internals, torch_internals
from sizing.tracer.allocations import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS, Allocation, AllocationLog
from sizing.tracer.device import lazy
from sizing.tracer.operators import constants
from sizing.tracer.refusal import Refusal

_DEVICE: Any = torch.ops.prim.device.default
_ADD: Any = torch.ops.aten.add.Tensor
_CPU = torch.device("cpu")
_COLLECTIVE = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_ACROSS = ("copy_", "_to_copy", "_foreach_copy_", "index", "index_put_", "_index_put_impl_")
"""Operators that a GPU runs even if one of their tensors is on the host."""


class Tracker(torch_internals.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode above the fake mode. `place` says whether new tensors are on the GPU; with None, any input decides.

    A new tensor without inputs is then on the GPU once the user's code has named one (`named`).
    """

    def __init__(self, fake: Any, ledger: AllocationLog, work: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = fake
        self.ledger = ledger
        self.work = work
        self.backward_depth = 0
        self.place: bool | None = None
        self.named = False
        self.inside = False
        self.blind = False
        self.moves = False
        self.unread = False
        self._stepping: Any = None
        self.stand_ins: dict[Any, Any] = {}
        self.scratch: dict[Any, Any] = {}
        self._records: dict[int, Allocation] = {}
        self._watches: dict[int, Any] = {}
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._learned: set[int] = set()
        self._apart: set[Allocation] = set()
        self._factories = constants.factories()
        self._drawing = constants.drawing()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in torch_internals.PLAIN for kind in types):
            return NotImplemented  # its operators run again, on the tensors that it wraps
        kwargs = kwargs or {}
        if func is _DEVICE:
            return args[0].fake_device
        if self.blind:
            return func(*args, **kwargs)
        before = self.place, self.inside
        self.inside = True
        if str(kwargs.get("device", "")).startswith("cuda"):  # from a function that the Placing mode does not see
            kwargs = {**kwargs, "device": _CPU}
            self.place = self.named = True
        try:
            out = self._called(func, args, kwargs)
            if func.namespace in _COLLECTIVE:  # data from other ranks is unknown
                torch_internals.forget(self.fake, (args, kwargs, out))
            if func in self._factories and not self.unread:
                constants.keep(self.fake, func, args, kwargs, out)
            if func in self._drawing:
                constants.drawn(self.fake, args, out)
            for value in torch_internals.tensors_in(out):
                self.see(value, (args, kwargs))
            scratch = self.scratch.get(func)
            if scratch is not None:
                self.ledger.scratch(scratch(args), self._lies((args, kwargs)))
            if self.work.counting and self.named and func._schema.name.split("::")[1] not in _ACROSS:
                self._notice_apart((args, kwargs))
            self.work.count(func, args, kwargs, out)
        finally:
            self.place, self.inside = before
        return out

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is _ADD and self._accumulates(args[0]):
            torch_internals.forget(self.fake, args[0])
            return args[0]
        call = self.stand_ins.get(func)
        try:
            return func(*args, **kwargs) if call is None else call(func, args, kwargs)
        except (NotImplementedError, RuntimeError):
            # a CPU cannot compute all that a GPU can: forget the numbers of small tensors and try again
            if not torch_internals.forget(self.fake, (args, kwargs)):
                raise
            return func(*args, **kwargs) if call is None else call(func, args, kwargs)

    def _accumulates(self, tensor: Any) -> bool:
        """Whether backward adds up two gradients of a tensor; torch does so in place, except without contents."""
        if not self.backward_depth or torch.is_grad_enabled() or not isinstance(tensor, torch_internals.FakeTensor):
            return False
        record = self._record(tensor)
        return (
            record is not None
            and record.node not in (None, autograd_internals.node())
            and autograd_internals.is_engines(tensor)
        )

    def see(self, tensor: Any, inputs: Any = ()) -> Allocation | None:
        """Return the record of a tensor's storage; a new one is on the GPU if made there or if an input is there."""
        tensor = torch_internals.local(tensor)
        if not isinstance(tensor, torch_internals.FakeTensor) or tensor.fake_device.type == "meta":
            return None
        if tensor.fake_mode is not self.fake:  # torch works out a sharding with the shapes of all ranks together
            return None
        if tensor.layout is not torch.strided:
            raise Refusal("the step makes a sparse tensor, which a trace cannot follow; sparse=False for embeddings")
        storage = tensor.untyped_storage()
        key = storage._cdata
        record = self._records.get(key)
        if record is None:
            recomputed = self.backward_depth > 0 and torch.is_grad_enabled()
            record = self._records[key] = self.ledger.open(storage.nbytes(), self._lies(inputs), recomputed)
            record.node = autograd_internals.node() if self.backward_depth else None
            self._watches[key] = weakref.finalize(storage, self._gone, key)
            self._watches[key].atexit = False
        return record

    def resized(self, storage: Any) -> None:
        """Record that a storage changed its size in place."""
        record = self._records.get(storage._cdata)
        if record is None:
            return
        self.ledger.close(record)
        new = self.ledger.open(storage.nbytes(), record.on_gpu, record.recomputed)
        new.kind = record.kind
        self._records[storage._cdata] = new

    def _lies(self, inputs: Any) -> bool:
        if self.place is not None:
            return self.place
        given = torch_internals.tensors_in(inputs)
        return any(self.on_gpu(value) for value in given) if given else self.named

    def on_gpu(self, tensor: Any) -> bool:
        """Whether a tensor is on the GPU; False for a tensor that was never seen."""
        tensor = torch_internals.local(tensor)
        if self.blind or not isinstance(tensor, torch_internals.FakeTensor):
            return False
        record = self._records.get(tensor.untyped_storage()._cdata)
        return record is not None and record.on_gpu

    def move(self, tensor: Any, gpu: bool) -> None:
        """Record that a tensor's storage is now on the GPU, or on the host."""
        record = self.see(tensor)
        if record is not None:
            record.on_gpu = gpu

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Return a context in which parameters move between devices, as a module's do; otherwise they are copied."""
        before, self.moves = self.moves, True
        try:
            yield
        finally:
            self.moves = before

    def _gone(self, key: int) -> None:
        self.ledger.close(self._records.pop(key))
        del self._watches[key]

    def _record(self, tensor: Any) -> Allocation | None:
        """Return the record of a tensor's storage; None if the trace does not follow it."""
        tensor = torch_internals.local(tensor)
        if not isinstance(tensor, torch_internals.FakeTensor) or tensor.fake_mode is not self.fake:
            return None
        return self._records.get(tensor.untyped_storage()._cdata)

    def _notice_apart(self, inputs: Any) -> None:
        """Remember host tensors that are used together with GPU tensors: a real step would fail there."""
        given = [self._record(value) for value in torch_internals.tensors_in(inputs) if value.dim()]
        if any(record is not None and record.on_gpu for record in given):
            self._apart.update(record for record in given if record is not None and not record.on_gpu)

    # -- modules and optimizers ---

    def find_owners(self) -> None:
        """Find all live modules and optimizers among all objects, because a copied module triggers no hook."""
        for each in gc.get_objects():
            if issubclass(type(each), torch.nn.Module):
                self._modules.add(each)
            elif issubclass(type(each), torch.optim.Optimizer):
                self._optimizers.add(each)

    def _of_modules(self) -> Iterator[tuple[str, Any]]:
        """Yield the parameters and buffers of modules, with names."""
        for module in list(self._modules):
            for kind in ("_parameters", "_buffers"):  # a module under construction may lack them
                for name, value in list((getattr(module, kind, None) or {}).items()):
                    if value is not None:
                        yield f"{type(module).__name__}.{name}", value

    @staticmethod
    def _of_optimizers(optimizers: Any) -> Iterator[tuple[str, Any]]:
        """Yield the parameters of optimizers, with names; an optimizer that wraps another may have no groups."""
        for optimizer in list(optimizers):
            for group in getattr(optimizer, "param_groups", None) or ():
                for value in group["params"]:
                    yield f"a parameter of {type(optimizer).__name__}", value

    def trainable(self) -> int:
        """Return the number of elements of this rank's trained parameters: in an optimizer, or with a gradient."""
        held = {id(value) for _, value in self._of_optimizers(self._optimizers)}
        everything = [*self._of_modules(), *self._of_optimizers(self._optimizers)]
        found = {id(value): value for _, value in everything if value.requires_grad}
        return sum(
            torch_internals.local(value).numel() for at, value in found.items() if at in held or at in self._learned
        )

    def refuse_what_is_forgotten(self) -> None:
        """Raise Refusal if a module's or an optimizer's tensor is missing in the ledger, or is in the wrong place."""
        trained = list(self._of_optimizers(self._stepped))
        states = [
            (f"the state of {type(optimizer).__name__}", value)
            for optimizer in list(self._stepped)
            for value in torch_internals.tensors_in([dict(state) for state in optimizer.state.values()])
            if value.dim()
        ]
        for name, value in self._of_modules():
            if not (lazy.is_lazy(value) or torch_internals.local(value).device.type == "meta"):  # these take no memory
                self._refuse_unknown(name, value)
        for name, value in [*trained, *states]:
            self._refuse_unknown(name, value)
        for name, value in trained:
            record = self._record(value)
            if self.named and record is not None and not record.on_gpu:
                raise Refusal(
                    f"{name} of shape {list(value.shape)} lies on the host while the step runs on a GPU, so its memory "
                    "would be missing: move the whole model before the optimizer is made"
                )
        for name, value in [*self._of_modules(), *states]:
            if self._record(value) in self._apart:
                raise Refusal(
                    f"{name} of shape {list(value.shape)} lies on the host, and the GPU computes with it: "
                    "move the whole model to the GPU"
                )
        stepped = {id(value) for _, value in trained}
        for name, value in self._of_optimizers(self._optimizers):
            if id(value) in self._learned and id(value) not in stepped:
                raise Refusal(
                    f"{name} has a gradient and is not stepped in two steps, so its state would be missing: let one "
                    "call of step() do all that leads to a step of each optimizer"
                )

    def _refuse_unknown(self, name: str, value: Any) -> None:
        tensor = torch_internals.local(value)
        record = self._record(value)
        if record is None or record.bytes < tensor.numel() * tensor.element_size():
            raise Refusal(
                f"{name} of shape {list(value.shape)} ({type(value).__name__}) is not among the tensors that the trace "
                "follows, so its memory would be missing: make it with torch's functions within make_step"
            )

    # -- kinds of storages ---

    def label_state(self) -> None:
        """Label the parameters and buffers of modules, the parameters of optimizers, and their gradients."""
        seen: set[int] = set()
        for _, value in [*self._of_modules(), *self._of_optimizers(self._optimizers)]:
            if id(value) in seen:
                continue
            seen.add(id(value))
            self.label(value, PARAMETERS)
            if value.grad is not None:
                self._learned.add(id(value))
                self.label(value.grad, GRADIENTS)

    def label(self, tensor: Any, kind: int) -> None:
        """Label a tensor's storage."""
        record = self._record(tensor)
        if record is not None:
            self.ledger.label(record, kind)

    def before_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        """Note that the optimizer is about to step. Raises Refusal for LBFGS."""
        if isinstance(optimizer, torch.optim.LBFGS):
            raise Refusal(
                "LBFGS goes on by the numbers of the loss, which a trace does not know: let step() call the closure "
                "once without the optimizer, and add its history, 2 x history_size x the weights"
            )
        self._stepping = optimizer
        self._stepped.add(optimizer)
        self._optimizers.add(optimizer)
        self.label_state()

    def after_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        """Label the state of an optimizer, which exists after its step."""
        self._stepping = None
        for value in torch_internals.tensors_in([dict(state) for state in optimizer.state.values()]):
            self.label(value, OPTIMIZER)

    def in_optimizer(self, tensor: Any) -> bool:
        """Whether an optimizer reads a number for its own use: any by torch's own, else its count of steps."""
        if self._stepping is None:
            return False
        if f"{type(self._stepping).__module__}.".startswith("torch.optim."):
            return True
        return any(isinstance(state, dict) and state.get("step") is tensor for state in self._stepping.state.values())

    def begin_backward(self) -> None:
        """Label activations at the beginning of a backward pass, which may be nested."""
        self.label_state()
        for record in self._records.values():
            self.ledger.label(record, ACTIVATIONS)
        self.backward_depth += 1

    def end_backward(self) -> None:
        """Label state at the end of a backward pass."""
        self.backward_depth -= 1
        self.label_state()
