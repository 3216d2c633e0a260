"""A pretended GPU for the user's code on a machine without one: replaces torch.cuda and other functions."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch

from sizing.tracer import torch_internals
from sizing.tracer.placing import names_gpu
from sizing.tracer.refusal import Refusal

_GENERATOR: Any = torch.Generator


class Stream:
    """A stand-in for a stream or an event: nothing runs, so nothing waits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.cuda_stream = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        """Return True: all work is done."""
        return True

    def is_capturing(self) -> bool:
        """Return False: no CUDA graph is captured."""
        return False

    def elapsed_time(self, other: Any) -> float:
        """Return a made-up time of 1 ms, because nothing runs in a trace."""
        return 1.0

    def record_event(self, event: Any = None) -> Any:
        """Return the event, or a new one."""
        return event or Stream()

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    record = wait = wait_event = wait_stream = synchronize = _nothing


class Properties(types.SimpleNamespace):
    """A stand-in for a GPU's properties."""

    def __init__(self) -> None:
        super().__init__(
            name="traced", major=8, minor=0, total_memory=80 * 2**30, multi_processor_count=108, warp_size=32
        )


class Generator(torch.Generator):
    """A generator of random numbers that is always the CPU's, whatever device is asked for."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _GENERATOR.__new__(cls, "cpu")


class Graph:
    """A CUDA graph, which code may refer to but not make: raises Refusal."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise Refusal("a CUDA graph cannot be traced")


def pretend(gpus: int) -> None:
    """Let torch.cuda answer as on a node with `gpus` GPUs; autocast and generators act on the trace's CPU tensors."""
    cuda: Any = torch.cuda

    def answers(value: Any) -> Any:
        return lambda *args, **kwargs: value

    for name, value in {
        "is_available": True,
        "is_initialized": False,
        "device_count": gpus,
        "current_device": 0,
        "get_device_name": "traced",
        "get_device_properties": Properties(),
        "get_device_capability": (8, 0),
        "get_arch_list": ["sm_80"],
        "is_bf16_supported": True,
        "memory_stats": {},
        "memory_summary": "",
        "mem_get_info": (80 * 2**30, 80 * 2**30),
        "can_device_access_peer": True,
        "default_stream": Stream(),
        "current_stream": Stream(),
        "get_rng_state": torch.empty(0, dtype=torch.uint8),
        "get_rng_state_all": [],
        "initial_seed": 0,
        "is_current_stream_capturing": False,
    }.items():
        setattr(cuda, name, answers(value))
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_cached",
        "max_memory_cached",
        "utilization",
    ):
        setattr(cuda, name, answers(0))
    for name in (
        "init",
        "_lazy_init",
        "set_device",
        "synchronize",
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
        "reset_accumulated_memory_stats",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "set_rng_state",
        "set_rng_state_all",
        "set_per_process_memory_fraction",
        "set_stream",
    ):
        setattr(cuda, name, answers(None))
    cuda.stream = lambda stream: contextlib.nullcontext(stream)
    cuda.device = lambda device: contextlib.nullcontext(device)
    cuda.Stream = cuda.Event = cuda.ExternalStream = Stream
    cuda.CUDAGraph = cuda.graph = cuda.make_graphed_callables = Graph
    cuda.nvtx = types.SimpleNamespace(
        range_push=answers(0), range_pop=answers(0), mark=answers(None), range=lambda *a, **k: contextlib.nullcontext()
    )
    everything: Any = torch
    everything.Generator = Generator
    _accelerator()
    _autocast()
    torch_internals.foreach_like_a_gpu()
    load = torch.load
    everything.load = lambda *args, **kwargs: load(*args, **{**kwargs, "map_location": "cpu"})


def _accelerator() -> None:
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is not None:
        accelerator.is_available = lambda: True
        accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
        accelerator.current_device_index = accelerator.current_device_idx = lambda: 0
        accelerator.current_stream = lambda device=None: Stream()
        accelerator.synchronize = accelerator.set_device_index = accelerator.set_stream = lambda *args: None
        accelerator.device_count = torch.cuda.device_count


def _autocast() -> None:
    """Apply a GPU's autocast to the traced tensors, and let a CPU's autocast do nothing."""
    autocast: Any = torch.amp.autocast_mode.autocast
    made, entered, left = autocast.__init__, autocast.__enter__, autocast.__exit__

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, **kwargs: Any) -> None:
        self.of_gpu = names_gpu(device_type)
        made(self, "cpu", dtype or torch.float16, enabled and self.of_gpu, **kwargs)

    def enter(self: Any) -> Any:
        return entered(self) if self.of_gpu else self  # recomputation enters the CPU's within the GPU's

    def leave(self: Any, *error: Any) -> Any:
        return left(self, *error) if self.of_gpu else None

    autocast.__init__, autocast.__enter__, autocast.__exit__ = init, enter, leave
    asked: Any = torch.is_autocast_enabled
    kind: Any = torch.get_autocast_dtype
    everything: Any = torch
    everything.is_autocast_enabled = lambda device_type="cuda": asked("cpu") if names_gpu(device_type) else False
    everything.get_autocast_dtype = lambda device_type: kind("cpu")
    everything.get_autocast_gpu_dtype = lambda: kind("cpu")


def no_scaler() -> None:
    """Disable gradient scalers: they multiply in place, which takes no memory, but branch on unknown numbers."""
    scaler: Any = torch.amp.GradScaler
    made = scaler.__init__

    def init(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        made(self, "cpu", enabled=False)

    scaler.__init__ = init
