"""Uses of torch's private parts, here and in autograd_internals, so that only these two change with a release."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib.util
import sys
import types
from typing import Any

import torch
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode

_torch: Any = torch

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
]

_BUFFER: type = getattr(torch.nn.parameter, "Buffer", torch.Tensor)
PLAIN: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter, FakeTensor, _BUFFER)
"""Types of tensors with their own storage; others (DTensor) wrap tensors, on which their operators run again."""

PAD_PACKED = _torch._C._VariableFunctions._pad_packed_sequence
"""The function behind `torch.nn.utils.rnn.pad_packed_sequence`, as a mode for functions sees it."""

PARSE_TO = _torch._C._nn._parse_to
"""The function by which `Module.to` reads its arguments."""

CONTENTS: tuple[type[Exception], ...] = (DataDependentOutputException, DynamicOutputShapeException)
"""Exceptions that are raised when code asks for the contents of a tensor without contents."""


MOST_KNOWN = 4096
"""The most elements that a tensor without contents may have for its numbers to be known nevertheless."""


def fake_mode() -> Any:
    """Return the mode in which tensors have no contents, except small ones that are made of numbers."""
    fake_tensor.CONSTANT_NUMEL_LIMIT = MOST_KNOWN
    return FakeTensorMode(allow_non_fake_inputs=True)


def know(fake: Any, tensor: Any, real: torch.Tensor) -> None:
    """Give a tensor without contents the numbers of a real one, until something is written into it."""
    tensor.constant = real
    fake.fake_tensor_converter.add_constant_storage_mapping(tensor)


def forget(fake: Any, values: Any) -> bool:
    """Forget the numbers of these tensors and of all that share their memory; return whether any were known."""
    known = [value for value in tensors_in(values) if getattr(value, "constant", None) is not None]
    for value in known:
        if value.constant is not None:  # an alias may have been forgotten just before
            fake.fake_tensor_converter.invalidate_constant_aliases(value.constant)
            value.constant = None
    return bool(known)


def without_contents_of(table: Any) -> None:
    """Let fake modes use these functions of (operator, arguments, keywords) for operators that they cannot follow."""
    for operator, function in table.items():

        def call(mode: Any, func: Any, *args: Any, function: Any = function, **kwargs: Any) -> Any:
            with mode:
                return function(func, args, kwargs)

        fake_impls.op_implementations_dict[operator] = call


def local(tensor: Any) -> Any:
    """Return this rank's local tensor of one that is spread over ranks."""
    return getattr(tensor, "_local_tensor", tensor)


def join_fake_group(size: int) -> None:
    """Join, as rank 0, a fake process group without other processes, whose collectives do nothing."""
    from torch.distributed import distributed_c10d

    store = {}
    if "fake" not in distributed_c10d.Backend.backend_list:  # before torch 2.5 it is part of torch's tests
        from torch.testing._internal.distributed.fake_pg import FakeStore

        store["store"] = FakeStore()
    with without_modes():
        distributed_c10d.init_process_group("fake", rank=0, world_size=size, **store)


def collectives() -> Any:
    """Return torch's module of stand-ins for collectives, which need contents or a process group."""
    from torch.distributed._tools import fake_collectives

    return fake_collectives


def quiet_compile() -> None:
    """Make torch.compile leave functions as they are."""

    def plain(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        return model if model is not None else (lambda function: function)

    _torch.compile = plain
    _torch.nn.Module.compile = lambda self, *args, **kwargs: None


def factories() -> Any:
    """Return the functions that make tensors on the default device."""
    return _device._device_constructors()


def default_device() -> Any:
    """Return the device of `torch.set_default_device` or `with torch.device(...)`; None if none was named."""
    return getattr(_device, "CURRENT_DEVICE", None)


def foreach_like_a_gpu() -> None:
    """Let optimizers use kernels over many tensors at once (foreach), as they do for tensors on a GPU."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for module in (optimizer, _foreach_utils):
        kinds = getattr(module, "_foreach_supported_types", None)
        if isinstance(kinds, list) and FakeTensor not in kinds:
            kinds.append(FakeTensor)


def without_dynamo() -> None:
    """Keep torch from importing its compiler, which takes seconds and is not needed here."""
    from torch import _compile

    def plain(function: Any = None, recursive: bool = True, **kwargs: Any) -> Any:
        return function if function is not None else (lambda each: each)

    wrapped: Any = _torch._disable_dynamo(plain)
    wrapper = getattr(wrapped, "__code__", None)
    for each in gc.get_objects():
        if type(each) is types.FunctionType and each.__code__ is wrapper:
            for cell in each.__closure__ or ():  # not __wrapped__, which an inner decorator may have set
                if callable(cell.cell_contents):
                    setattr(cell.cell_contents, "__dynamo_disable", cell.cell_contents)
    compiler: Any = _compile
    compiler._disable_dynamo = _torch._disable_dynamo = plain
    if "torch._dynamo" not in sys.modules:
        spec = importlib.util.find_spec("torch._dynamo")
        if spec is not None and spec.loader is not None:
            late = _Late("torch._dynamo")
            late.__spec__, late.__file__ = spec, spec.origin
            late.__path__ = list(spec.submodule_search_locations or ())
            sys.modules["torch._dynamo"] = _torch._dynamo = late
            sys.meta_path.insert(0, _Whole())
            sys.modules["torch._dynamo.source"] = _Sources("torch._dynamo.source")


class _Late(types.ModuleType):
    """A package whose submodules can be imported, but that itself runs only when one of its attributes is read."""

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing, as outside of the compiler; optimizers call it at each step."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        object.__setattr__(self, "__class__", types.ModuleType)
        sys.modules.pop("torch._dynamo.source", None)
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


class _Whole:
    """A finder of that package's submodules; it runs the package first, because the submodules need each other."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a submodule that the package imported itself; None leaves it to the usual finders."""
        if not name.startswith("torch._dynamo.") or name.startswith("torch._dynamo.config"):
            return None
        if isinstance(_torch._dynamo, _Late):
            getattr(_torch._dynamo, "disable", None)
        return importlib.util.spec_from_loader(name, self) if name in sys.modules else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Any:
        """Return the submodule, which is imported already."""
        return sys.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Do nothing: the submodule has run already."""


class _Sources(types.ModuleType):
    """A stand-in for that package's names of values, which constants are given but nothing reads."""

    class ConstantSource:
        """The name of a constant."""

        def __init__(self, name: str) -> None:
            self.name = name

    class RandomValueSource:
        """The name of a random number; no value here has one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if isinstance(_torch._dynamo, _Late):
            getattr(_torch._dynamo, "disable", None)
        return getattr(sys.modules[self.__name__], name)


@contextlib.contextmanager
def without_modes() -> Any:
    """Return a context in which tensors are real again."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def without_contents(values: Any, tracker: Any) -> Any:
    """Replace real tensors in nested values by tensors without contents, and show these to the tracker."""
    from torch.utils._pytree import tree_map_only

    def convert(tensor: Any) -> Any:
        fake = tensor if isinstance(tensor, FakeTensor) else tracker.fake.from_tensor(tensor)
        tracker.place, before = False, tracker.place
        tracker.see(fake)
        tracker.place = before
        return fake

    return tree_map_only(torch.Tensor, convert, values)


def convert_in_place(moving: Any = contextlib.nullcontext) -> None:
    """Let `Module.to` and similar methods work on parameters without contents, which torch does not swap.

    A parameter is converted in the context that `moving()` makes.
    """
    usual: Any = torch.nn.Module._apply

    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        held = [each for each in (*self._parameters.values(), *self._buffers.values()) if each is not None]
        own = [each for each in held if isinstance(each, torch.nn.Parameter) and not hasattr(each, "later")]
        if not all(isinstance(each, FakeTensor) for each in own):
            return usual(self, fn, recurse)

        def converted(value: Any) -> Any:
            with torch.no_grad(), moving():
                return fn(value)

        for value in held:
            if hasattr(value, "later"):  # it has no shape yet
                value.later.append(converted)
        if recurse:
            for module in self.children():
                module._apply(fn)
        for name, value in self._parameters.items():
            if value is None or hasattr(value, "later"):
                continue
            new = converted(value)
            grad = None if value.grad is None else converted(value.grad)
            if new is not value:
                if new.fake_device == value.fake_device:
                    value.grad = None
                    value.data = new
                else:
                    value = self._parameters[name] = torch.nn.Parameter(new, value.requires_grad)
            if grad is not value.grad:
                value.grad = grad
        for name, value in self._buffers.items():
            if value is not None and not hasattr(value, "later"):
                self._buffers[name] = fn(value)
        return self

    _torch.nn.Module._apply = apply


def copy_within_the_mode() -> None:
    """Let `copy.deepcopy` of a tensor without contents keep its mode: torch's own would copy the mode as well."""

    def deepcopy(self: Any, memo: Any) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            if isinstance(self, torch.nn.Parameter):
                new = torch.nn.Parameter(self.detach().clone(memory_format=torch.preserve_format), self.requires_grad)
            else:  # views of one storage are views of its one copy
                storage = self.untyped_storage()
                key, size = (storage._cdata, self.dtype), storage.nbytes() // self.element_size()
                copies = memo.setdefault("bft", {})
                if key not in copies:
                    copies[key] = self.detach().as_strided((size,), (1,), 0).clone()
                new = copies[key].as_strided(self.shape, self.stride(), self.storage_offset())
                new.requires_grad_(self.requires_grad)
            if self.grad is not None:
                new.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = new
        return new

    fake: Any = FakeTensor
    fake.__deepcopy__ = deepcopy


def swap(one: Any, other: Any) -> None:
    """Swap two tensors in place: each reference to one now refers to the content of the other."""
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


def tell_device(inside: Any, of: Any) -> None:
    """Let tensors without contents report the device that `of` returns, except to torch itself (`inside()` is true)."""
    usual: Any = FakeTensor.device

    def device(self: Any) -> Any:
        said = usual.fget(self)
        return said if self.fake_mode.in_kernel_invocation or inside() else of(self, said)

    fake: Any = FakeTensor
    fake.device = property(device, usual.fset)


def tensors_in(values: Any) -> list[Any]:
    """Return the tensors among an operator's arguments or results."""
    found: list[Any] = []
    _gather(values, found)
    return found


def _gather(value: Any, found: list[Any]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _gather(each, found)
    elif isinstance(value, dict):
        for each in value.values():
            _gather(each, found)


def meshes() -> Any:
    """Return the class and modules with the functions that make device meshes."""
    from torch.distributed import device_mesh

    return device_mesh.DeviceMesh, device_mesh, torch.distributed


def watch_resizing(resized: Any) -> None:
    """Call `resized(storage)` after a storage was made larger or smaller in place."""
    usual: Any = torch.UntypedStorage.resize_

    def resize(self: Any, size: int) -> Any:
        out = usual(self, size)
        resized(self)
        return out

    _torch.UntypedStorage.resize_ = resize


def shield_sharding(tracker: Any) -> None:
    """Let the tracker ignore the tensors with which torch works out a sharding: they have the shapes of all ranks."""
    from torch.distributed.tensor import _sharding_prop

    propagator: Any = _sharding_prop.ShardingPropagator
    for name, value in list(vars(propagator).items()):
        if name.startswith("_propagate_tensor_meta") and isinstance(value, types.FunctionType):
            setattr(propagator, name, _unseen(tracker, value))


def _unseen(tracker: Any, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        before, tracker.blind = tracker.blind, True
        try:
            return function(*args, **kwargs)
        finally:
            tracker.blind = before

    return call


def without_autocast() -> Any:
    """Return a context in which operators run in the precision of their arguments."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def mapped(function: Any, values: Any) -> Any:
    """Return nested values with each tensor replaced by `function` of it."""
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, function, values)


def rebuilt(flat: Any, form: Any) -> Any:
    """Rebuild nested values from flat ones, in the form that an exported program has for them."""
    from torch.utils._pytree import tree_unflatten

    return tree_unflatten(flat, form)
