"""Watches every operator of a step: writes its storages into the ledger, and counts its work."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from sizing.model.child import private
from sizing.model.child.ledger import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS, Ledger, Record
from sizing.model.child.refusal import Refusal

_DEVICE: Any = torch.ops.prim.device.default
_CPU = torch.device("cpu")


class Tracker(private.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stands above the fake mode; `on_gpu` says where a new tensor without inputs is (None: as its inputs are)."""

    def __init__(self, fake: Any, ledger: Ledger, work: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = fake
        self.ledger = ledger
        self.work = work
        self.backward_depth = 0
        self.place: bool | None = None
        self.named = False
        self.inside = False
        self.blind = False
        self._stepping: Any = None
        self.stand_ins: dict[Any, Any] = {}
        self.scratch: dict[Any, Any] = {}
        self._records: dict[int, Record] = {}
        self._watches: dict[int, Any] = {}
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in private.PLAIN for kind in types):
            return NotImplemented  # its own operators come by again, on the tensors that it wraps
        kwargs = kwargs or {}
        if func is _DEVICE:
            return args[0].fake_device
        if self.blind:
            return func(*args, **kwargs)
        before = self.place, self.inside
        self.inside = True
        if str(kwargs.get("device", "")).startswith("cuda"):  # out of a function that no mode sees into
            kwargs = {**kwargs, "device": _CPU}
            self.place = self.named = True
        try:
            stand_in = self.stand_ins.get(func)
            out = func(*args, **kwargs) if stand_in is None else stand_in(func, args, kwargs)
            for value in private.tensors_in(out):
                self.see(value, (args, kwargs))
            scratch = self.scratch.get(func)
            if scratch is not None:
                self.ledger.scratch(scratch(args), self._lies((args, kwargs)))
            self.work.count(func, args, kwargs, out)
        finally:
            self.place, self.inside = before
        return out

    def see(self, tensor: Any, inputs: Any = ()) -> Record | None:
        """The record of a tensor's storage, opened where it is new: on the GPU if it is made there, or of `inputs`."""
        tensor = private.local(tensor)
        if not isinstance(tensor, private.FakeTensor) or tensor.fake_device.type == "meta":
            return None
        if tensor.fake_mode is not self.fake:  # torch reckons a sharding by the shapes of all ranks together
            return None
        if tensor.layout is not torch.strided:
            raise Refusal("the step makes a sparse tensor, which a trace cannot follow; sparse=False for embeddings")
        storage = tensor.untyped_storage()
        key = storage._cdata
        record = self._records.get(key)
        if record is None:
            recomputed = self.backward_depth > 0 and torch.is_grad_enabled()
            record = self._records[key] = self.ledger.open(storage.nbytes(), self._lies(inputs), recomputed)
            self._watches[key] = weakref.finalize(storage, self._gone, key)
            self._watches[key].atexit = False
        return record

    def resized(self, storage: Any) -> None:
        """A storage took another size in place."""
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
        given = private.tensors_in(inputs)
        return any(self.on_gpu(value) for value in given) if given else self.named

    def on_gpu(self, tensor: Any) -> bool:
        """Whether a tensor lies on the GPU; one that was never seen does not."""
        tensor = private.local(tensor)
        if self.blind or not isinstance(tensor, private.FakeTensor):
            return False
        record = self._records.get(tensor.untyped_storage()._cdata)
        return record is not None and record.on_gpu

    def move(self, tensor: Any, gpu: bool) -> None:
        """Let a tensor's storage lie on the GPU, or not."""
        record = self.see(tensor)
        if record is not None:
            record.on_gpu = gpu

    def _gone(self, key: int) -> None:
        self.ledger.close(self._records.pop(key))
        del self._watches[key]

    def trainable(self) -> int:
        """The elements of this rank's trainable parameters."""
        found = {id(p): p for module in self._modules for p in module._parameters.values() if p is not None}
        return sum(private.local(p).numel() for p in found.values() if p.requires_grad)

    # -- what kind a storage is of ---

    def module(self, module: Any, name: str, value: Any) -> None:
        """A module takes a parameter or a buffer."""
        self._modules.add(module)

    def label_state(self) -> None:
        """Label what modules hold, and its gradients."""
        seen: set[int] = set()
        for module in list(self._modules):
            for value in [*module._parameters.values(), *module._buffers.values()]:
                if value is None or id(value) in seen:
                    continue
                seen.add(id(value))
                self.label(value, PARAMETERS)
                if value.grad is not None:
                    self.label(value.grad, GRADIENTS)

    def label(self, tensor: Any, kind: int) -> None:
        """Label a tensor's storage."""
        record = self.see(tensor)
        if record is not None:
            self.ledger.label(record, kind)

    def before_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        """The optimizer is about to step."""
        self._stepping = optimizer
        for group in optimizer.param_groups:
            for value in group["params"]:
                self.label(value, PARAMETERS)
                if value.grad is not None:
                    self.label(value.grad, GRADIENTS)

    def after_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        """The optimizer has stepped, and has its state by now."""
        self._stepping = None
        for value in private.tensors_in([dict(state) for state in optimizer.state.values()]):
            self.label(value, OPTIMIZER)

    def in_optimizer(self, tensor: Any) -> bool:
        """Whether a number is read by an optimizer for what it reckons: the steps taken, or any by torch's own."""
        if self._stepping is None:
            return False
        own = f"{type(self._stepping).__module__}.".startswith("torch.optim.")
        if own and not isinstance(self._stepping, torch.optim.LBFGS):  # which searches until it finds
            return True
        return any(isinstance(state, dict) and state.get("step") is tensor for state in self._stepping.state.values())

    def begin_backward(self) -> None:
        """Backward begins, or one within it."""
        self.label_state()
        for record in self._records.values():
            self.ledger.label(record, ACTIVATIONS)
        self.backward_depth += 1

    def end_backward(self) -> None:
        """Backward is done."""
        self.backward_depth -= 1
        self.label_state()
