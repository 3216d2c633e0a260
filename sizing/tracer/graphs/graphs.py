"""Reads a user's model as a chain of operators, exported by torch on tensors without contents."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from typing import Any

import torch

from sizing.tracer import answering, torch_internals
from sizing.tracer.device import fake_host, isolation, lazy
from sizing.tracer.graphs import models, module_chain
from sizing.tracer.operators import flops, stand_ins
from sizing.tracer.refusal import Refusal

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_REGIONS = ("wrap_with_autocast", "wrap_with_set_grad_enabled", "wrap", "cond", "while_loop", "scan", "map_impl")
_LARGEST_REGION = 0.5
_NO_OPERATORS = re.compile(r"(_assert|sym_|getitem$)")


class NotExported(Exception):
    """A model cannot be read operator by operator; the message is the reason, on one line."""


def graph(request: dict[str, Any]) -> dict[str, Any]:
    """Read the operators of the model that the request names: [name, module, flops, across_bytes, parameters] each.

    Returns the answer as JSON has it, with the origin of the graph and notes. Raises Refusal.
    """
    set_up(int(request.get("tp", 1)))
    fake = torch_internals.fake_mode()
    notes = []
    try:
        with fake, fake_host.FakeHost():
            made = models.load(request)
    except Refusal:
        raise
    except Exception as error:
        reason = answering.reason_of(error, request["path"])
        try:
            made, fake = fake_host.on_cpu(request), None
        except fake_host.TooLarge:
            raise error from None
        notes.append(f"made on real tensors: {reason}")
    origin, why = "export", ""
    rows: list[list[Any]] = []
    unknown: set[str] = set()
    try:
        rows, unknown = exported(made, fake)
    except NotExported as error:
        why = str(error)
    except Refusal:
        raise
    except Exception as error:
        why = answering.reason_of(error, request["path"])
    if why:
        origin, (rows, unknown), how = module_chain.chain(made, fake, request)
        notes.append(f"by modules{how}, as torch.export does not take the model: {why}")
    notes.append(made.note)
    if unknown:
        notes.append(f"the work of {', '.join(sorted(unknown)[:5])} is not known and not counted")
    return {
        "model": type(made.model).__name__,
        "origin": origin,
        "note": "; ".join(filter(None, notes)),
        "operators": rows,
        "torch": torch.__version__,
    }


def main(request: dict[str, Any], reply: int) -> None:
    """Answer one request on the pipe `reply`."""
    answering.answer(graph, request, reply)


def set_up(tp: int) -> None:
    """Prepare this process: no network, no compiler, no warnings from exports."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch_internals.quiet_compile()
    torch_internals.convert_in_place()
    torch_internals.copy_within_the_mode()
    lazy.without_contents()
    torch_internals.without_contents_of(stand_ins.table())
    stand_ins.quiet_init()
    isolation.no_network()
    isolation.no_checkpoints()
    if tp > 1:
        fake_host.real_meshes()


def program(made: models.BuiltModel) -> Any:
    """Export the model with torch.export; raises any error that torch.export raises."""
    return torch.export.export(made.model, made.args, made.kwargs, strict=False)


def operators(graph_module: Any) -> list[Any]:
    """Return the nodes of an exported program that are operators, in order; getitem is not one."""
    return [
        node
        for node in graph_module.graph.nodes
        if node.op == "call_function" and not _NO_OPERATORS.match(getattr(node.target, "__name__", str(node.target)))
    ]


def exported(made: models.BuiltModel, fake: Any) -> tuple[list[list[Any]], set[str]]:
    """Export a model; return its rows, and the operators whose work is unknown."""
    with fake or contextlib.nullcontext():
        found = program(made)
    whole = found.graph_module
    nodes = operators(whole)
    if not nodes:
        raise NotExported("the model has no operator")
    place = {node: at for at, node in enumerate(nodes)}
    at = -1
    for node in whole.graph.nodes:  # getitem belongs to the operator whose result it reads
        at = place.setdefault(node, at)
    counted = Counted(whole)
    counts = counted.run_all(found, made)
    total = sum(counts.values())
    for node in nodes:
        if getattr(node.target, "__name__", "") in _REGIONS and counts[node] > _LARGEST_REGION * total:
            raise NotExported(f"most of it is one region ({node.target.__name__})")
    sent = _sent(found, made, nodes, place, counted)
    owned = _first_users(found, made, place)
    rows = [
        [node.name, _module(node), counts[node], sent[index], owned.get(index, 0)] for index, node in enumerate(nodes)
    ]
    return rows, counted.counter.unknown


class Counted(torch.fx.Interpreter):
    """An interpreter that counts each operator on tensors without contents, and records which need gradients."""

    def __init__(self, whole: Any) -> None:
        super().__init__(whole, garbage_collect_values=False)
        self.whole = whole
        self.counter = flops.Counter()
        self.counts: dict[Any, int] = {}
        self.learns: dict[Any, bool] = {}

    def run_all(self, found: Any, made: models.BuiltModel) -> dict[Any, int]:
        """Run the whole program; return FLOPs by node."""
        values = []
        modes = contextlib.ExitStack()
        weights = {spec.arg.name: spec.target for spec in found.graph_signature.input_specs if _is(spec, "PARAMETER")}
        for node in self.whole.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                fake = getattr(value, "fake_mode", None)
                value = value.detach()
                if node.name in weights and made.model.get_parameter(weights[node.name]).requires_grad:
                    value.requires_grad_()
            values.append(value)
        modes.enter_context(fake or torch_internals.fake_mode())
        modes.enter_context(self.counter)
        with modes:
            self.run(*values, enable_io_processing=False)
        return self.counts

    def run_node(self, n: Any) -> Any:
        """Run one node and count its products."""
        before = self.counter.flops
        out = self._attended(n) if n.target is _ATTENTION else super().run_node(n)
        self.counts[n] = self.counter.flops - before
        self.learns[n] = any(each.requires_grad for each in torch_internals.tensors_in(out))
        if any(not isinstance(size, int) for each in torch_internals.tensors_in(out) for size in each.shape):
            raise NotExported(f"the size of {n.name} in {_module(n) or 'the model'} depends on what tensors hold")
        return out

    def _attended(self, node: Any) -> Any:
        query, key, value = self.fetch_args_kwargs_from_env(node)[0][:3]
        self.counter.flops += flops.attention(query, key, value)
        with self.counter.without_products():
            return super().run_node(node)


def _is(spec: Any, kind: str) -> bool:
    return bool(spec.kind.name == kind)


def _module(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = str(list(stack.values())[-1][0]) if stack else ""
    return re.sub(r"@\d+", "", path)


def _first_users(found: Any, made: models.BuiltModel, place: dict[Any, int]) -> dict[int, int]:
    """Return, by operator, the trainable elements that it uses first; a weight with several names counts once."""
    names = {spec.arg.name: spec.target for spec in found.graph_signature.input_specs if _is(spec, "PARAMETER")}
    first: dict[int, tuple[int, int]] = {}
    for node in found.graph_module.graph.find_nodes(op="placeholder"):
        if node.name in names and node.users:
            weight = made.model.get_parameter(names[node.name])
            if weight.requires_grad:
                at = min(place[user] for user in node.users)
                known = first.get(id(weight))
                first[id(weight)] = (at if known is None else min(at, known[0]), torch_internals.local(weight).numel())
    owned: dict[int, int] = {}
    for at, count in first.values():
        owned[max(at, 0)] = owned.get(max(at, 0), 0) + count
    return owned


def _sent(found: Any, made: models.BuiltModel, nodes: list[Any], place: dict[Any, int], counted: Counted) -> list[int]:
    """Return, for each operator, the bytes that are alive behind it and used by a later one; 0 for the last.

    Each stage gets the model's inputs and recomputes values made of constants alone, so neither counts. Several views
    of one tensor count at most as much as the tensor.
    """
    last = len(nodes) - 1
    signature = found.graph_signature
    inputs = {spec.arg.name for spec in signature.input_specs if _is(spec, "USER_INPUT")}
    wanted = _in_loss(found, made)
    root: dict[Any, Any] = {}
    moves: dict[Any, bool] = {}
    sent = [0] * len(nodes)
    groups: dict[Any, list[tuple[int, int, int]]] = {}
    for node in found.graph_module.graph.nodes:
        if node.op == "placeholder":
            root[node], moves[node] = node, node.name in inputs
            continue
        if node.op != "call_function":
            continue
        root[node] = _origin(node, root)
        moves[node] = counted.learns.get(node, False) or any(moves.get(each, False) for each in node.all_input_nodes)
        if not moves[node] or root[node].op == "placeholder":
            continue
        uses = [place[user] for user in node.users if user.op == "call_function"]
        if node in wanted:
            uses.append(last)
        end, begin = max(uses, default=-1), place[node]
        size = _bytes(node)
        if end > begin and size:
            groups.setdefault(root[node], []).append((begin, end, size))
    for whole, alive in groups.items():
        most = _bytes(whole) or max(size for _, _, size in alive)
        begins, ends = min(begin for begin, _, _ in alive), max(end for _, end, _ in alive)
        for at in range(begins, ends):
            now = sum(size for begin, end, size in alive if begin <= at < end)
            sent[at] += min(now, most)
    sent[last] = 0
    return sent


def _origin(node: Any, root: dict[Any, Any]) -> Any:
    """Return the node whose storage holds a result: the node itself, except for views and in-place operators."""
    if getattr(node.target, "__name__", "") == "getitem":
        whole = root.get(node.args[0])
        return (
            node if whole is None or whole is node.args[0] else whole
        )  # a part of a tensor, or one of several results
    schema = getattr(node.target, "_schema", None)
    if schema is None or not any(each.alias_info is not None for each in schema.returns):
        return node
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is not None and isinstance(value, torch.fx.Node):
            return root.get(value, node)
    return node


def _bytes(node: Any) -> int:
    """Return the bytes of a result that is one tensor; for several results 0, because their getitem nodes count."""
    value = node.meta.get("val")
    return int(value.numel()) * value.element_size() if isinstance(value, torch.Tensor) else 0


def _in_loss(found: Any, made: models.BuiltModel) -> set[Any]:
    """Return the nodes among the model's outputs that its loss depends on."""
    outputs = next(iter(found.graph_module.graph.find_nodes(op="output"))).args[0]
    specs = found.graph_signature.output_specs
    flat = [node for node, spec in zip(outputs, specs, strict=True) if _is(spec, "USER_OUTPUT")]
    values = [node.meta["val"] if isinstance(node, torch.fx.Node) else node for node in flat]
    mode = next((each.fake_mode for each in values if isinstance(each, torch_internals.FakeTensor)), None)
    with mode or contextlib.nullcontext(), torch.enable_grad():
        values = torch_internals.mapped(_leaf, values)
        loss = made.loss(torch_internals.rebuilt(values, found.call_spec.out_spec))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            kind = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise Refusal(f"the loss is {kind}: one number, with a gradient", True)
        if not loss.requires_grad:
            return {node for node in flat if isinstance(node, torch.fx.Node)}
        leaves = [each for each in values if isinstance(each, torch.Tensor) and each.requires_grad]
        found_grads = iter(torch.autograd.grad(loss, leaves, allow_unused=True))
        used = set()
        for node, value in zip(flat, values, strict=True):
            learns = isinstance(value, torch.Tensor) and value.requires_grad
            if isinstance(node, torch.fx.Node) and (not learns or next(found_grads) is not None):
                used.add(node)
    return used


def _leaf(value: Any) -> Any:
    fresh = value.detach()
    return fresh.requires_grad_() if fresh.is_floating_point() else fresh
