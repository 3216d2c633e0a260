"""A stand-in for a GPU in whatever Python is started with this folder on its path: "cuda" is the CPU.

Its memory is made up: GPU_STAND_IN names the device's total, and what is allocated, reserved and in use, in bytes.
"""

import os
import time

if os.environ.get("CUDA_VISIBLE_DEVICES") != "" and "GPU_STAND_IN" in os.environ:
    import torch
    from torch.overrides import TorchFunctionMode

    idle = int(os.environ.get("GPU_STAND_IN_IDLE", "500000000"))  # in use before anything runs
    total, allocated, reserved, in_use = map(int, os.environ["GPU_STAND_IN"].split(","))

    class Event:
        """A moment of the clock."""

        def __init__(self, enable_timing=False):
            self.at_s = 0.0

        def record(self):
            self.at_s = time.perf_counter()

        def elapsed_time(self, other):
            return 1000 * (other.at_s - self.at_s)

    limit = [float(total)]

    class OnCpu(TorchFunctionMode):
        """Whatever names the GPU as its device has the CPU."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if limit[-1] < allocated:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)

    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_name = lambda *_: os.environ.get("GPU_STAND_IN_NAME", "NVIDIA A100-SXM4-80GB")
    torch.cuda.Event = Event
    begun = []
    torch.cuda.mem_get_info = lambda *_: (total - (in_use if begun else idle), total)
    torch.cuda.reset_peak_memory_stats = lambda *_: begun.append(True)
    torch.cuda.max_memory_allocated = lambda *_: allocated
    torch.cuda.max_memory_reserved = lambda *_: reserved
    torch.cuda.memory_reserved = lambda *_: 0
    torch.cuda.set_per_process_memory_fraction = lambda part: limit.append(part * total)
    for name in ("synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *_: None)
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_: self
    OnCpu().__enter__()
