"""Times passes and optimizer steps of a slice on one device, and measures their memory."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sizing.tracer.ranks import fake_collectives
from sizing.tracer.refusal import Refusal
from sizing.tracer.runs.meter import Meter, bytes_of
from sizing.tracer.runs.rounds import interval, repeated

_WARM_UPS = 2
_LITTLE = 1e-8  # a learning rate so small that weights do not diverge


@dataclass
class Slice:
    """A stage's part of a model on its device. `run(leaves)` returns its outputs.

    `leaves` are the values from the stage before, with gradients if that stage needs them. `weights` are parameters and
    buffers, `parameters` those that are trained. `exchanged` are its collectives if they are known without a run.
    """

    run: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    leaves: list[torch.Tensor]
    weights: list[torch.Tensor]
    parameters: list[torch.Tensor]
    note: str = ""
    context: Callable[[], Any] = contextlib.nullcontext
    exchanged: list[list[Any]] | None = None


def autocast(precision: str, device: str) -> Callable[[], Any]:
    """Return the context for passes in a precision, and set TF32 as it needs. Raises Refusal for an unknown one."""
    kind = torch.device(device).type
    if precision == "bf16":
        return lambda: torch.autocast(kind, torch.bfloat16)
    if precision == "fp16-amp":
        return lambda: torch.autocast(kind, torch.float16)
    if precision in ("fp32", "tf32", "bf16-pure"):
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        return contextlib.nullcontext
    raise Refusal(f"precision {precision} is not profiled: fp32, tf32, bf16, fp16-amp or bf16-pure", True)


def optimizer_of(name: str, parameters: list[torch.Tensor]) -> Any:
    """Return torch's own optimizer of that name; None if there is nothing to train."""
    if not parameters:
        return None
    known: dict[str, Callable[[], Any]] = {
        "adam": lambda: torch.optim.Adam(parameters, _LITTLE),
        "adamw": lambda: torch.optim.AdamW(parameters, _LITTLE),
        "sgd": lambda: torch.optim.SGD(parameters, _LITTLE),
        "momentum": lambda: torch.optim.SGD(parameters, _LITTLE, 0.9),
        "adafactor": lambda: torch.optim.Adafactor(parameters, _LITTLE),
    }
    if name not in known:
        raise Refusal(f"optimizer {name} is not profiled: {', '.join(known)}", True)
    return known[name]()


class CallClock:
    """A clock for calls: on a CPU the process's CPU time with one thread or wall time with several, else GPU events.

    Other processes do not lengthen CPU time, but only wall time includes the waits of threads for each other. The GPU's
    events enclose the whole call, so gaps in which the GPU waits for the CPU count.
    """

    def __init__(self, device: str, threads: int) -> None:
        self.cuda = torch.device(device).type == "cuda"
        self._now = time.process_time if threads == 1 else time.perf_counter

    def of(self, do: Callable[[], Any]) -> float:
        """Return the seconds that `do` takes."""
        if not self.cuda:
            began = self._now()
            do()
            return self._now() - began
        event: Any = torch.cuda.Event
        start, end = (event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        do()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000


class Pass:
    """Forward and backward of a slice, with the gradients that the next stage would send."""

    def __init__(self, piece: Slice, device: str) -> None:
        self.piece = piece
        self.cuda = torch.device(device).type == "cuda"
        self._ones: list[torch.Tensor] | None = None
        self.activation_bytes = 0

    def forget(self) -> None:
        """Drop gradients, as an optimizer's zero_grad does."""
        for each in (*self.piece.leaves, *self.piece.parameters):
            each.grad = None

    def forward(self) -> list[torch.Tensor]:
        """Run forward; return the outputs that need a backward pass."""
        with self.piece.context():
            outs = self.piece.run(self.piece.leaves)
        return [each for each in outs if each.requires_grad]

    def backward(self, outs: list[torch.Tensor]) -> None:
        """Run backward from all outputs at once."""
        if not outs:
            return
        if self._ones is None:
            self._ones = [torch.ones_like(each) for each in outs]
        torch.autograd.backward(outs, self._ones)

    def __call__(self) -> None:
        self.backward(self.forward())


def measured(piece: Slice, device: str, threads: int, rounds: int, optimizer: str) -> dict[str, Any]:
    """Measure a slice and return the results as JSON has them; times in seconds are (value, low, high)."""
    through = Pass(piece, device)
    stepper = optimizer_of(optimizer, piece.parameters)
    update: Callable[[], Any] = stepper.step if stepper is not None else (lambda: None)
    for _ in range(_WARM_UPS):
        through.forget()
        through()
        update()
    found = fake_collectives.seen_by(str, through)  # gradients exist by now, as in all micro-batches after the first
    peak, activations = _peak(through, piece, stepper, update)
    clock = CallClock(device, threads)

    def one() -> tuple[float, float]:
        through.forget()
        return clock.of(through), clock.of(update)

    gc.collect()
    gc.disable()
    try:
        passes, steps = repeated(one, rounds)
    finally:
        gc.enable()
    gradients = bytes_of([each.grad for each in piece.parameters if each.grad is not None])
    return {
        "compute_s": interval(passes),
        "update_s": interval(steps),
        "parameters": sum(each.numel() for each in piece.parameters),
        "weight_bytes": bytes_of(piece.weights),
        "state_bytes": gradients + _state_bytes(stepper),
        "activation_bytes": activations,
        "peak_bytes": peak,
        "exchanges": fake_collectives.listed(found) if piece.exchanged is None else piece.exchanged,
        "rounds": len(passes),
        "note": piece.note,
    }


def _state_bytes(stepper: Any) -> int:
    if stepper is None:
        return 0
    states = [value for state in stepper.state.values() for value in state.values()]
    return bytes_of([value for value in states if isinstance(value, torch.Tensor)])


def _peak(through: Pass, piece: Slice, stepper: Any, update: Callable[[], Any]) -> tuple[int, int]:
    """Return the peak bytes of a pass that accumulates gradients and an optimizer step, and the pass's activations.

    On a GPU the allocator counts; on a CPU each tensor counts from its creation until it is freed.
    """
    if through.cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        outs = through.forward()
        kept = torch.cuda.memory_allocated() - before
        through.backward(outs)
        del outs
        update()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(), kept
    there = [*piece.weights, *(each.grad for each in (*piece.parameters, *piece.leaves) if each.grad is not None)]
    began = bytes_of([*there, *piece.leaves]) + _state_bytes(stepper)
    with Meter(began) as meter:
        assert isinstance(meter, Meter)
        meter.know([*there, *piece.leaves])
        before = meter.held
        outs = through.forward()
        kept = meter.held - before
        through.backward(outs)
        del outs
        update()
    return meter.peak, kept
