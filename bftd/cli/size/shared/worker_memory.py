"""A check whether a worker of an elastic job fits the harvested GPUs, by tracing the script's own `make_step`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bftd.base.errors import UsageError
from bftd.base.format import size

if TYPE_CHECKING:
    from bftd.core.model.classes import NodeClass
    from elastic.options.elastic_option import ElasticSpec
    from sizing.inventory.gpus import GpuType

FUNCTION = "make_step"
_TIMEOUT_S = 60.0

Log = Callable[[str], None]


@dataclass(frozen=True)
class StepFunction:
    """The function in a script that makes its training step.

    `batch` is its default batch, None if it has none. `guarded` says that the script can be imported without training:
    it trains under `if __name__ == "__main__":`.
    """

    batch: int | None
    guarded: bool


def find(source: str) -> StepFunction | None:
    """Find `make_step` at the top level of a script, without running it; None if there is none."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION:
            return StepFunction(_default(node.args), any(map(_is_main_guard, body)))
    return None


def fitted(
    spec: ElasticSpec,
    script: tuple[Path, str],
    batch: int | None,
    classes: Mapping[str, NodeClass],
    own: Mapping[str, GpuType],
    log: Log,
) -> ElasticSpec:
    """Return the spec without the GPUs that are too small for a worker's step.

    `script` is its path and the Python that runs it, `batch` the user's batch of one worker, `classes` are those that
    the job may use, and `own` the site's descriptions of its GPUs by their name in Slurm. If something cannot be found
    out, the user is told and the spec stays as it was. Raises UsageError if a worker fits none of the GPUs.
    """
    path, interpreter = script
    step = find(path.read_text())
    if step is None:
        if batch is not None:
            raise UsageError(f"--step-batch: {path.name} has no function {FUNCTION} at its top level to take it")
        return spec
    judged = {name: kind for name, kind in classes.items() if any(kind.gpus.values())}
    if not judged:
        return spec
    need = _need(spec, step, path, interpreter, step.batch if batch is None else batch, log)
    return spec if need is None else _left(spec, need, judged, own, log)


@dataclass(frozen=True)
class _Need:
    """The GPU memory that one worker needs, and the batch with which that was traced."""

    bytes: int
    batch: int

    def __str__(self) -> str:
        return f"{size(self.bytes)} with the guard band, traced with a batch of {self.batch}"


def _need(spec: ElasticSpec, step: StepFunction, path: Path, python: str, batch: int | None, log: Log) -> _Need | None:
    from sizing.base.errors import SizingError
    from sizing.base.parallel import Parallel
    from sizing.child import tracing
    from sizing.memory import traced

    unchecked = f"{path.name}: whether a worker fits the GPUs is not checked"
    if spec.container:
        log(f"{unchecked}: its torch is in the image")
    elif not step.guarded:
        log(f'{unchecked}: importing it would train; train under `if __name__ == "__main__":`')
    elif batch is None:
        log(f"{unchecked}: say --step-batch N, the batch of one worker, or def {FUNCTION}(batch_size=N)")
    else:
        try:
            found = tracing.trace(f"{path}:{FUNCTION}", batch, Parallel(), python=python, timeout_s=_TIMEOUT_S)
        except SizingError as error:
            log(f"{unchecked}: {error}")
        else:
            return _Need(int(traced.peak_of(found).peak.high), batch)
    return None


def _left(
    spec: ElasticSpec, need: _Need, classes: Mapping[str, NodeClass], own: Mapping[str, GpuType], log: Log
) -> ElasticSpec:
    """Return the spec without the types of GPUs that are too small."""
    small = {}
    for name, kind in classes.items():
        if why := _too_small(name, kind, need, spec.workers_per_node or 1, own, log):
            small[name] = why
    if len(small) == len(classes):
        raise UsageError(
            f"a worker takes {need}, and no harvested nodes that the job may use have GPUs so large: "
            f"{', '.join(small.values())}; give each worker a smaller batch, or recompute activations"
        )
    if not small:
        return spec
    out = {type_ for name in small for type_, count in classes[name].gpus.items() if count}
    stay = {type_ for name in classes.keys() - small for type_, count in classes[name].gpus.items() if count}
    message = f"a worker takes {need}: too small are {', '.join(small.values())}"
    if out & stay or "" in out:
        log(f"{message}, and Slurm calls these GPUs as it does larger ones: choose nodes with --constraint")
        return spec
    log(f"{message}; their nodes are left out (without={':'.join(sorted(out))})")
    return replace(spec, without=tuple(dict.fromkeys((*spec.without, *sorted(out)))))


def _too_small(
    name: str, kind: NodeClass, need: _Need, workers: int, own: Mapping[str, GpuType], log: Log
) -> str | None:
    """Describe a class whose GPUs are certainly too small for a worker; tell the user about uncertain cases."""
    for type_, count in kind.gpus.items():
        if not count:
            continue
        least_bytes, most_bytes, note = _memory_of(type_, kind, own)
        sharing = -(-workers // count)
        taken_bytes = need.bytes * sharing
        if not most_bytes:
            log(f"nothing is known of the GPUs of {name}: whether a worker fits them is not checked")
        elif taken_bytes > most_bytes:
            return f"{name} ({size(most_bytes)}{f' for {sharing} workers' if sharing > 1 else ''})"
        elif taken_bytes > least_bytes:
            log(f"a worker takes {need}, and {name} may be too small: {note}")
    return None


def _memory_of(type_: str, kind: NodeClass, own: Mapping[str, GpuType]) -> tuple[int, int, str]:
    """Return the least and the most memory of a class's GPUs, and why they differ.

    They come from the site's descriptions or from the catalogue; both are 0 if nothing is known.
    """
    from sizing.inventory import gpus

    found = gpus.recognise(type_, sorted(kind.features))
    known = own.get(type_) or (own.get(found.type.name) if found else None)
    if known is not None:
        return known.memory_bytes, known.memory_bytes, ""
    if found is None:
        return 0, 0, ""
    return found.type.memory_bytes, max(found.type.memory_bytes, found.most_bytes), found.note


def _default(arguments: ast.arguments) -> int | None:
    """Return the default of the first argument if it is a whole number above zero."""
    first = [*arguments.posonlyargs, *arguments.args][:1]
    if not first or len(arguments.defaults) < len(arguments.posonlyargs) + len(arguments.args):
        return None
    value = arguments.defaults[0]
    known = value.value if isinstance(value, ast.Constant) else None
    return known if isinstance(known, int) and not isinstance(known, bool) and known >= 1 else None


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test) and "__main__" in ast.dump(node.test)
