"""Runs the user's step twice on tensors without contents, and reports its memory and work to the parent."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import os
import sys
from typing import Any

from sizing.tracer import answering
from sizing.tracer.refusal import Refusal


def load(path: str, function: str) -> Any:
    """Load the user's function from its file, with imports found as under `python FILE`."""
    sys.dont_write_bytecode = True  # bytecode is checked by size and second: an edit that keeps both would go unseen
    sys.path[:1] = [os.path.dirname(path)] if sys.path[:1] == [""] else [os.path.dirname(path), *sys.path[:1]]
    sys.argv = [path]
    name = os.path.splitext(os.path.basename(path))[0]
    name = f"{name}_step" if name in sys.modules else name
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Refusal(f"{path} is no Python file", usage=True)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    made = getattr(module, function, None)
    if not callable(made):
        raise Refusal(f"{path} has no function {function}", usage=True)
    return made


def set_up(target: str, gpus: int) -> tuple[Any, Any]:
    """Prepare this process for a trace; return the tracker, and the context for the user's code."""
    import torch
    from torch.optim import optimizer

    from sizing.tracer import autograd_internals, torch_internals
    from sizing.tracer.allocations import AllocationLog
    from sizing.tracer.device import fake_gpu, isolation, lazy
    from sizing.tracer.operators import kernels, onednn, packing, stand_ins
    from sizing.tracer.operators.work import WorkCounter
    from sizing.tracer.placing import GPU, Placing
    from sizing.tracer.ranks import fake_ranks
    from sizing.tracer.tracker import Tracker

    torch_internals.without_dynamo()
    torch_internals.copy_within_the_mode()
    lazy.without_contents()
    fake_gpu.no_scaler()
    torch.set_num_threads(1)
    torch_internals.quiet_compile()
    on_cuda = target == "cuda"
    ledger = AllocationLog(512 if on_cuda else 1)
    fake = torch_internals.fake_mode()
    tracker = Tracker(fake, ledger, WorkCounter())
    tracker.stand_ins.update(stand_ins.table())
    tracker.stand_ins.update(stand_ins.bounds(tracker.work.bound))
    tracker.stand_ins.update(packing.stand_ins(fake))
    stand_ins.quiet_init()
    torch_internals.convert_in_place(tracker.moving)
    if on_cuda:
        fake_gpu.pretend(gpus)
        torch_internals.tell_device(
            lambda: tracker.inside, lambda tensor, said: GPU if tracker.on_gpu(tensor) else said
        )
        kernels.like_a_gpu(tracker)
    else:
        onednn.take(tracker)
    optimizer.register_optimizer_step_pre_hook(tracker.before_step)
    optimizer.register_optimizer_step_post_hook(tracker.after_step)
    if gpus > 1:
        fake_ranks.stand_alone(gpus, tracker)
        if not on_cuda:
            tracker.stand_ins.update(fake_ranks.gloo_buffers(ledger))
    else:
        fake_ranks.join_when_asked(tracker)
    isolation.no_network()
    isolation.no_checkpoints()
    isolation.load_data_here(tracker)
    torch_internals.watch_resizing(tracker.resized)
    autograd_internals.watch_backward(tracker)
    modes = contextlib.ExitStack()
    for mode in (fake, tracker, Placing(tracker, on_cuda)):
        modes.enter_context(mode)
    return tracker, modes


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Trace the step that the request names."""
    import torch

    from sizing.tracer import dependencies
    from sizing.tracer.operators import stand_ins

    tracker, modes = set_up(request["target"], request["dp"] * request["tp"] * request["fsdp"])
    gc.freeze()
    depended = dependencies.watched()
    with modes:
        step = made(request)
        tracker.find_owners()
        tracker.label_state()
        stand_ins.as_without_a_trace()
        for counting in (False, True):  # the first step sets up state that the second one already has
            tracker.work.counting = counting
            do(step)
            tracker.find_owners()
            tracker.label_state()
        tracker.refuse_what_is_forgotten()
        parameters = tracker.trainable()
    peak, kinds = tracker.ledger.peak(gpu_only=request["target"] == "cuda" and tracker.named)
    if not peak:
        raise Refusal("the step makes no tensor: return a function that does one training step", True)
    return {
        "peak_bytes": peak,
        "by_category": kinds,
        "parameters": parameters,
        "operators": [[name, *row, precision] for (name, precision), row in tracker.work.operators.items()],
        "collectives": {kind: size for kind, (_, size) in tracker.work.collectives.items()},
        "upper_bounds": tracker.work.upper_bounds,
        "collective_calls": {kind: calls for kind, (calls, _) in tracker.work.collectives.items()},
        "torch": torch.__version__,
        "depends": depended(),
    }


def do(step: Any) -> None:
    """Run one step and drop its result, as a training loop does."""
    kind = type(step()).__name__
    if kind in ("coroutine", "generator"):
        raise Refusal(f"the step is a {kind}, which does nothing by itself: write def step()", usage=True)


def made(request: dict[str, Any]) -> Any:
    """Return the step that the user's function makes."""
    name = request["function"]
    make_step = load(request["path"], name)
    sizes = {size: request[size] for size in request["takes"]}
    if isinstance(make_step, type):
        raise Refusal(
            f"{name} is a class: name a function def make_step(batch_size) that makes a {name} and returns a function "
            "that does one training step (`bft size fit --help` shows one)",
            True,
        )
    try:
        inspect.signature(make_step).bind(request["batch"], **sizes)
    except TypeError as error:
        raise Refusal(
            f"{name} cannot be called with a batch size ({error}): write def {name}(batch_size)", True
        ) from None
    step = make_step(request["batch"], **sizes)
    if isinstance(step, tuple):
        from sizing.tracer.graphs import user_model

        return user_model.training_step(
            step, name, on_gpu=request.get("target") == "cuda", replicas=request.get("dp", 1)
        )
    if not callable(step) or not _needs_nothing(step):
        raise Refusal(
            f"{name} returned {type(step).__name__}: return a function without arguments that does one training step "
            "(`bft size fit --help` shows one)",
            True,
        )
    return step


def _needs_nothing(step: Any) -> bool:
    """Whether a step can be called without arguments, as far as can be seen."""
    import torch

    try:
        inspect.signature(step.forward if isinstance(step, torch.nn.Module) else step).bind()
    except TypeError:
        return False
    except ValueError:  # a function of C that does not tell what it takes
        return True
    return True


def main(request: dict[str, Any], reply: int) -> None:
    """Answer one request on the pipe `reply`."""
    answering.answer(run, request, reply)
