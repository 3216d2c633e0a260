"""A user's model that cannot be exported, cut by its modules; each runs alone on random inputs of recorded shapes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from sizing.tracer import torch_internals
from sizing.tracer.graphs import export, models, module_chain, random_inputs, user_model
from sizing.tracer.refusal import Refusal
from sizing.tracer.runs.measure import Slice, autocast

_NOTE = "cut by modules: what runs between them, and the loss, is not timed"


class Blocks:
    """The modules of a model for one batch and tensor-parallel size, with the arguments of each call."""

    def __init__(self, request: dict[str, Any], batch: int, base: Sequence[Sequence[str]]) -> None:
        self.request, self.base = request, base
        try:
            fake: Any = torch_internals.fake_mode()
            self.made = export.load(request, batch, fake)
            self.calls = self._called(fake)
        except Exception:  # a model that depends on contents runs on real tensors, as when its graph was read
            self.made = models.load({**request, "batch": batch}, "cpu")
            self.calls = self._called(None)

    def _called(self, fake: Any) -> dict[str, tuple[Any, Any, Any]]:
        """Run the model; return (module, args, kwargs) of each call, by unit names as in the graph."""
        found: dict[str, tuple[Any, Any, Any]] = {}

        def watch(path: str) -> Any:
            def hook(module: Any, args: Any, kwargs: Any) -> None:
                again = sum(name == path or name.startswith(f"{path}@") for name in found)
                found[f"{path}@{again}" if again else path] = module, args, kwargs

            return hook

        with contextlib.ExitStack() as stack:
            for path, module in module_chain.units(self.made.model):
                stack.callback(module.register_forward_pre_hook(watch(path), with_kwargs=True).remove)
            stack.enter_context(fake or contextlib.nullcontext())
            self.made.model(*self.made.args, **self.made.kwargs)
        return found

    def cut(self, first: int, last: int, device: str) -> Slice:
        """Cut out the modules of operators `first` to `last`, on a device."""
        names = [row[0] for row in self.base[first : last + 1]]
        missing = [name for name in names if name not in self.calls]
        if missing:
            raise Refusal(
                f"{missing[0]} is not called for a batch of {self.request['batch']} and tp={self.request['tp']}: "
                "let make_model build the same modules for all"
            )
        known: dict[int, torch.Tensor] = {}
        leaves: list[torch.Tensor] = []
        calls: list[tuple[Any, Any, Any]] = []
        for name in names:
            module, args, kwargs = self.calls[name]
            _fill(module, known, device)
            rows = module.num_embeddings if isinstance(module, torch.nn.Embedding) else 0
            places: dict[int, int] = {}

            def leaf(value: Any, rows: int = rows, places: dict[int, int] = places) -> Any:
                if id(value) not in places:
                    places[id(value)] = len(leaves)
                    leaves.append(random_inputs.like(value, device, learns=value.requires_grad, rows=rows))
                return _Place(places[id(value)])

            calls.append((module, torch_internals.mapped(leaf, args), torch_internals.mapped(leaf, kwargs)))
        weights = {id(each): each for module, _, _ in calls for each in (*module.parameters(), *module.buffers())}
        trained = [each for each in weights.values() if each.requires_grad]

        def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
            outs: list[torch.Tensor] = []
            for module, args, kwargs in calls:
                out = module(*_placed(args, given), **_placed(kwargs, given))
                outs += torch_internals.tensors_in(user_model.plain(out))
            return outs

        return Slice(run, leaves, list(weights.values()), trained, _NOTE, autocast(self.request["precision"], device))

    def exchanged(self, first: int, last: int) -> list[list[Any]] | None:
        """Return None: the collectives are seen when the modules run."""
        return None


class _Place:
    """A placeholder for a leaf among a module's arguments."""

    def __init__(self, at: int) -> None:
        self.at = at


def _placed(arguments: Any, given: list[torch.Tensor]) -> Any:
    if isinstance(arguments, _Place):
        each = given[arguments.at]
        return each.view_as(each) if each.requires_grad else each
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(_placed(each, given) for each in arguments)
    if isinstance(arguments, dict):
        return {key: _placed(value, given) for key, value in arguments.items()}
    return arguments


def _fill(module: torch.nn.Module, known: dict[int, torch.Tensor], device: str) -> None:
    """Replace a module's weights without contents by real ones, and move the module to a device."""
    for part in module.modules():
        for name, value in list(part._parameters.items()):
            if isinstance(value, torch_internals.FakeTensor):
                if id(value) not in known:
                    made = random_inputs.weight(value, name, device)
                    known[id(value)] = torch.nn.Parameter(made, value.requires_grad)
                part._parameters[name] = known[id(value)]
        for name, buffer in list(part._buffers.items()):
            if isinstance(buffer, torch_internals.FakeTensor):
                known.setdefault(id(buffer), random_inputs.weight(buffer, name, device))
                part._buffers[name] = known[id(buffer)]
    module.to(device)


def origin_of(request: dict[str, Any]) -> Any:
    """Return the class that cuts stages in the way that the request's graph was read."""
    return export.Program if request["graph"]["origin"] == "export" else Blocks
