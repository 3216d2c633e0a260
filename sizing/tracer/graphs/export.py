"""A user's model as an exported program, from which stages are cut out and run alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sizing.tracer import torch_internals
from sizing.tracer.device import fake_host
from sizing.tracer.graphs import graphs, models, random_inputs
from sizing.tracer.ranks import fake_collectives
from sizing.tracer.refusal import Refusal
from sizing.tracer.runs.measure import Slice, autocast

_SHAPES = (
    "view reshape _unsafe_view slice to contiguous flatten select unsqueeze squeeze clone transpose permute alias "
    "detach expand _to_copy add clamp where masked_fill"
)
"""Operators that pass on their input's values, which `_rows` looks through to find their use."""


def load(request: dict[str, Any], batch: int, fake: Any) -> models.BuiltModel:
    """Load the user's model on tensors without contents, in the request's precision."""
    with fake, fake_host.FakeHost():
        made = models.load({**request, "batch": batch})
        if request["precision"] == "bf16-pure":
            made.model.to(torch.bfloat16)
            args, kwargs = torch_internals.mapped(
                lambda each: each.to(torch.bfloat16) if each.is_floating_point() else each, (made.args, made.kwargs)
            )
            made = models.BuiltModel(made.model, args, kwargs, made.loss, made.note)
    return made


class Program:
    """The exported model for one batch and tensor-parallel size; shards are numbered by the operators of `base`."""

    def __init__(self, request: dict[str, Any], batch: int, base: Sequence[Sequence[str]]) -> None:
        self.request, self.base = request, base
        self.fake = torch_internals.fake_mode()
        self.made = load(request, batch, self.fake)
        try:
            with self.fake:
                self.exported = graphs.program(self.made)
        except Exception:
            if all(torch_internals.local(each) is each for each in self.made.model.parameters()):
                raise
            raise Refusal(
                "torch.export does not take this model's DTensors (parallelize_module): cut it in "
                f"{request['function']} with torch.distributed's own functions, or give the model a tp_plan"
            ) from None
        self.whole = self.exported.graph_module
        self.nodes = graphs.operators(self.whole)
        self.modules = [graphs._module(node) for node in self.nodes]
        self.place = {node: at for at, node in enumerate(self.nodes)}
        at = 0
        for node in self.whole.graph.nodes:
            if node.op not in ("placeholder", "output"):
                at = self.place.setdefault(node, at)
        kinds = {spec.arg.name: spec for spec in self.exported.graph_signature.input_specs if hasattr(spec.arg, "name")}
        self.specs = kinds
        self.learns: dict[Any, bool] = {}
        self.moves: dict[Any, bool] = {}
        for node in self.whole.graph.nodes:
            self._follow(node)
        self._exchanged: dict[tuple[str, int, str], int] | None = None

    def _follow(self, node: Any) -> None:
        """Record whether a node's result has a gradient, and whether it depends on trained weights or inputs."""
        value = node.meta.get("val")
        real = isinstance(value, torch.Tensor) and value.is_floating_point()
        if node.op == "placeholder":
            kind = self._kind(node)
            trained = kind == "PARAMETER" and self._weight(node).requires_grad
            self.learns[node], self.moves[node] = trained, trained or kind == "USER_INPUT"
            return
        before = node.all_input_nodes
        stopped = "detach" in str(node.target)
        several = isinstance(value, (tuple, list))
        self.learns[node] = not stopped and (real or several) and any(self.learns.get(each, False) for each in before)
        self.moves[node] = any(self.moves.get(each, False) for each in before)

    def _kind(self, node: Any) -> str:
        spec = self.specs.get(node.name)
        return str(spec.kind.name) if spec is not None else "CONSTANT_TENSOR"

    def _weight(self, node: Any) -> torch.Tensor:
        return self.made.model.get_parameter(str(self.specs[node.name].target))

    # -- the beginning of a stage ---

    def starts(self, at: int) -> int:
        """Return the position in this program of operator `at` of the base graph; programs may have extra operators."""
        if at >= len(self.base):
            return len(self.nodes)
        if at == 0 or len(self.base) == len(self.nodes):
            return at
        module = self.base[at][1]
        same = [index for index, row in enumerate(self.base) if row[1] == module]
        here = [index for index, path in enumerate(self.modules) if path == module]
        if not here:
            here = [index for index, path in enumerate(self.modules) if path.startswith(f"{module}.")][:1]
        behind = same.index(at)
        if here and len(same) == len(here):
            return here[behind]
        if here and behind == 0:
            return here[0]
        if here and len(same) - behind <= len(here):
            return here[len(here) - (len(same) - behind)]
        raise Refusal(
            f"the stage that begins in {module or 'the model'} ({self.base[at][0]}) is not found again for a batch of "
            f"{self.request['batch']} and tp={self.request['tp']}: let make_model build the same modules for all"
        )

    # -- a stage ---

    def cut(self, first: int, last: int, device: str) -> Slice:
        """Cut out operators `first` to `last`, numbered by the base graph, on a device."""
        begin, end = self.starts(first), self.starts(last + 1) - 1
        if end < begin:
            raise Refusal(f"the stage from {self.base[first][0]} to {self.base[last][0]} has no operator of its own")
        final = end == len(self.nodes) - 1
        inside = [node for node in self.place if begin <= self.place[node] <= end and not _asserts(node)]
        wanted = set(inside)
        outputs = self._user_outputs() if final else self._sent(inside, wanted, end)
        graph = torch.fx.Graph()
        copies: dict[Any, Any] = {}
        outside: list[Any] = []
        self._take([*inside, *(node for node in outputs if isinstance(node, torch.fx.Node))], wanted, outside)
        for node in outside:
            copies[node] = graph.placeholder(node.name)
        target = torch.device(device)
        for node in self.whole.graph.nodes:
            if node in wanted:
                copy = graph.node_copy(node, copies.__getitem__)
                copy.args = _on(copy.args, target)
                copy.kwargs = _on(copy.kwargs, target)
                copies[node] = copy
        graph.output([copies[node] if isinstance(node, torch.fx.Node) else node for node in outputs])
        module = torch.fx.GraphModule(self.whole, graph)
        shared = self._shared(outside, begin, end)
        return self._slice(module, outside, final, device, shared)

    def _sent(self, inside: list[Any], wanted: set[Any], end: int) -> list[Any]:
        """Return the nodes that a stage hands on: values used after it, or results of the model."""
        results = {node for node in self._user_outputs() if isinstance(node, torch.fx.Node)}
        return [
            node
            for node in inside
            if isinstance(node.meta.get("val"), torch.Tensor)
            and (node in results or any(self.place.get(user, -1) > end for user in node.users if user.op != "output"))
        ]

    def _user_outputs(self) -> list[Any]:
        output = next(iter(self.whole.graph.find_nodes(op="output"))).args[0]
        specs = self.exported.graph_signature.output_specs
        return [node for node, spec in zip(output, specs, strict=True) if spec.kind.name == "USER_OUTPUT"]

    def _take(self, nodes: list[Any], wanted: set[Any], outside: list[Any]) -> None:
        """Gather the inputs of nodes: values computed from constants alone are recomputed, others come from outside."""
        seen: set[Any] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in wanted:
                waiting += node.all_input_nodes
            elif node.op == "placeholder" or (self.moves[node] and node.op != "get_attr"):
                if isinstance(node.meta.get("val"), (tuple, list)):
                    raise Refusal(f"a stage begins behind {node.name}, which has several results; cut elsewhere")
                outside.append(node)
            else:
                wanted.add(node)
                waiting += node.all_input_nodes
        order = {node: at for at, node in enumerate(self.whole.graph.nodes)}
        outside.sort(key=order.__getitem__)

    def _slice(self, module: Any, outside: list[Any], final: bool, device: str, shared: str) -> Slice:
        weights: dict[int, torch.Tensor] = {}
        trained: list[torch.Tensor] = []
        leaves: list[torch.Tensor] = []
        arguments: list[tuple[bool, Any]] = []
        for node in outside:
            kind = self._kind(node) if node.op == "placeholder" else "ACTIVATION"
            if kind in ("PARAMETER", "BUFFER"):
                name = str(self.specs[node.name].target)
                known = self._weight(node) if kind == "PARAMETER" else node.meta["val"]
                if id(known) not in weights:
                    made = random_inputs.weight(node.meta["val"], name, device)
                    if kind == "PARAMETER" and known.requires_grad:
                        made.requires_grad_()
                        trained.append(made)
                    weights[id(known)] = made
                arguments.append((False, weights[id(known)]))
            elif isinstance(node.meta.get("val"), torch.Tensor):
                arguments.append((True, len(leaves)))
                learns = kind == "ACTIVATION" and self.learns[node]
                leaves.append(random_inputs.like(node.meta["val"], device, learns=learns, rows=_rows(node)))
            else:
                arguments.append((False, node.meta.get("val")))
        note = (
            f"weights of several stages are in each, and their gradients are to be summed: {shared}" if shared else ""
        )
        loss, spec, filled = self.made.loss, self.exported.call_spec.out_spec, random_inputs.Filled(device)
        written = [_written(node) for node, (leaf, _) in zip(outside, arguments, strict=True) if leaf]

        def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
            # autograd allows no in-place write to a leaf, but a stage may write to another stage's result
            given = [each.clone() if new else each for each, new in zip(given, written, strict=True)]
            outs = module(*(given[at] if leaf else at for leaf, at in arguments))
            if not final:
                return list(outs)
            with filled:
                return [loss(torch_internals.rebuilt(list(outs), spec))]

        note = "; ".join(filter(None, (self.made.note, note)))
        return Slice(run, leaves, list(weights.values()), trained, note, autocast(self.request["precision"], device))

    def _shared(self, outside: list[Any], begin: int, end: int) -> str:
        """Name the trained weights of a stage that another one also uses, such as a tied embedding."""
        mine = {id(self._weight(node)) for node in outside if node.op == "placeholder" and self.learns[node]}
        found = []
        for node in self.whole.graph.find_nodes(op="placeholder"):
            if self.learns[node] and id(self._weight(node)) in mine:
                places = [self.place[user] for user in node.users if user in self.place]
                if any(not begin <= place <= end for place in places):
                    found.append(str(self.specs[node.name].target))
        return ", ".join(found)

    # -- collectives ---

    def exchanged(self, first: int, last: int) -> list[list[Any]]:
        """Return the collectives of a stage, assigned by the modules that call them.

        They are seen while the whole model runs without contents: an export only has those of the forward pass.
        """
        if self.request["tp"] == 1:
            return []
        if self._exchanged is None:
            self._exchanged = self._watched()
        found = {}
        for (kind, size, path), calls in self._exchanged.items():
            if first <= self._operator_of(path) <= last:
                found[kind, size, path] = calls
        return fake_collectives.listed(found)

    def _watched(self) -> dict[tuple[str, int, str], int]:
        from torch.utils.module_tracker import ModuleTracker

        made = self.made
        with self.fake, ModuleTracker() as tracker:

            def place() -> str:
                inner = max((each for each in tracker.parents if each != "Global"), key=len, default="")
                return inner.partition(".")[2]

            def run() -> None:
                loss: Any = made.loss(made.model(*made.args, **made.kwargs))
                loss.backward()

            return fake_collectives.seen_by(place, run)

    def _operator_of(self, path: str) -> int:
        """Return the last operator of the base graph in a module, or in the nearest enclosing module that has any."""
        while path:
            inside = [at for at, row in enumerate(self.base) if row[1] == path or row[1].startswith(f"{path}.")]
            if inside:
                return inside[-1]
            path = path.rpartition(".")[0]
        return len(self.base) - 1


def _asserts(node: Any) -> bool:
    """Whether a node only checks forms from the export, which autocast changes."""
    return "_assert" in getattr(node.target, "__name__", str(node.target))


def _written(node: Any) -> bool:
    """Whether an operator writes into this value in place."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is not None and schema.is_mutable and user.args and user.args[0] is node:
            return True
    return False


def _on(arguments: Any, device: torch.device) -> Any:
    """Replace devices in arguments, however nested, by this device."""
    if isinstance(arguments, torch.device):
        return device
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(_on(each, device) for each in arguments)
    if isinstance(arguments, dict):
        return {key: _on(value, device) for key, value in arguments.items()}
    return arguments


def _rows(node: Any, depth: int = 6) -> int:
    """Return the rows of the embedding matrix that a value is an index into; 0 if it is not an index."""
    for user in node.users:
        name = str(user.target).partition(".")[2].partition(".")[0] or str(user.target)
        if name == "embedding" and len(user.args) > 1 and user.args[1] is node:
            return int(user.args[0].meta["val"].shape[0])
        if depth and name in _SHAPES.split() and (found := _rows(user, depth - 1)):
            return found
    return 0
