"""`bft size curve`: the samples per second of an elastic trainer by number of nodes, for each class.

The driver of a job with `curve=estimate` runs it in the background (elastic/driver/progress/curve_estimate.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import BftError, UsageError
from bftd.cli import common, options
from bftd.cli.progress import meanwhile
from bftd.cli.size.shared import size_options

if TYPE_CHECKING:
    from bftd.protocol.curves import CurveEstimate
    from bftd.protocol.registration import NodeKind
    from elastic.options.elastic_option import ElasticSpec
    from sizing.cells.shards import ShardProfile, StageShard
    from sizing.choice.curves import Curve
    from sizing.inventory.gpus import GpuType

MODEL = "make_model"
"""The function in a script under which `bft size profile` stores its model."""
# As in `bft size profile`.
_PRECISIONS = ("bf16", "bf16-pure", "fp16-amp", "tf32", "fp32")
_OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "adafactor")


@click.command()
@click.argument("script", metavar="[SCRIPT]", required=False)
@click.option("--nodes", "text", metavar="MIN-MAX[,...]", help="As --elastic of bft sbatch.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Of one worker; default: that of make_step.")
@click.option("--classes", "path", metavar="FILE", help="Classes of nodes as JSON (- is standard input), not Slurm's.")
@size_options.precision
@size_options.python
@size_options.timeout()
@click.option("--memory-bytes", type=click.IntRange(min=2**26), metavar="N", help="For a trace; default 8 GiB.")
@click.option("--modules", metavar="FOLDER", help="Where SCRIPT's own modules are, if not beside it.", hidden=True)
@click.option(
    "--background", type=int, metavar="PID", help="Give way to everything, end with this parent.", hidden=True
)
@click.option("--matrices", metavar="FILE", help="No SCRIPT: search a recorded matrix as bft size cpu does a job.")
@click.option("--model", metavar="NAME", help="Whose matrix of --matrices.")
@options.config
@options.as_json
def curve(
    script: str | None,
    text: str | None,
    batch: int | None,
    path: str | None,
    precision: str,
    python: str,
    timeout_s: float,
    memory_bytes: int | None,
    modules: str | None,
    background: int | None,
    matrices: str | None,
    model: str | None,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Estimate how fast SCRIPT would train on how many nodes: what curve=estimate begins with.

    SCRIPT has a function make_step(batch_size), as for bft size fit. It is traced for nodes with GPUs, and run for real
    for a few seconds for nodes without. All figures are assumed.

    With --matrices and --model, tell how few CPUs of a recorded job the search of bft size cpu would have tried, and
    what it would have found.
    """
    from bftd.cli.size.output import curve_recorded
    from bftd.cli.size.shared import inventory
    from elastic.options.elastic_option import ElasticSpec
    from sizing.model.request import refuse_precision

    if matrices is not None or model is not None:
        of_script = options.given() - {"matrices", "model", "as_json", "config_path"}
        curve_recorded.show(matrices, model, as_json, others=bool(of_script))
        return
    if script is None or text is None:
        raise UsageError("name a script and its nodes, SCRIPT --nodes MIN-MAX, or --matrices FILE --model NAME")
    if background is not None:
        _give_way(background)
    if modules:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (modules, os.environ.get("PYTHONPATH"))))
    refuse_precision(precision)
    spec = ElasticSpec.parse(text)
    step = _step(Path(script), spec.estimate_batch if batch is None else batch, python, precision, timeout_s)
    step.memory_bytes = memory_bytes
    step.original = Path(modules, step.path.name) if modules else None
    kinds = _classes_in(path) if path is not None else _classes_here(spec, config_path)
    own = inventory.own_types(config_path)
    if background is None:
        found, notes = meanwhile(f"estimating {script}", lambda: estimated(step, spec, kinds, own))
    else:
        found, notes = estimated(step, spec, kinds, own)
    if not found:
        raise BftError(f"no class of nodes can be estimated: {'; '.join(notes) or 'there is none'}")
    if as_json:
        common.echo_json({"estimates": [_shown(*each) for each in found], "notes": notes})
        return
    common.echo(_lines(found, notes))


@dataclass
class ScriptStep:
    """A script's training step, which is traced and run on demand, each at most once.

    `original` is the file that `path` is a copy of, None if it is no copy: profiles identify models by their files.
    """

    path: Path
    batch: int
    python: str
    precision: str
    timeout_s: float
    memory_bytes: int | None = None
    original: Path | None = None
    _known: dict[str, Any] = field(default_factory=dict, init=False)

    def on(self, kind: NodeKind, spec: ElasticSpec, own: Mapping[str, GpuType]) -> tuple[Curve, str, list[str]]:
        """Return the curve on a class of nodes, its basis in words, and remarks; raises SizingError."""
        from sizing.choice import curves

        sizes = curves.sizes_of(spec.nodes_min, spec.nodes_max, spec.sizes or ())
        counts = {type_: count for type_, count in kind.gpus.items() if count}
        if not counts:
            nodes = curves.Nodes(kind.name, spec.workers_per_node or 1, cpus=max(1, kind.cpus))
            made = curves.on_cpus(self._run(), nodes, sizes)
            return made, f"a step on one core of the driver's CPU, times {nodes.cpus} cores", []
        type_, count = max(counts.items(), key=lambda item: item[1])
        gpu, note = _gpu(type_, kind, own)
        nodes = curves.Nodes(kind.name, spec.workers_per_node or count, gpu, count, max(1, kind.cpus))
        known, precision = self._profiles(gpu.name)
        profiled = curves.on_profile(known, self.batch, nodes, sizes)
        if profiled is not None:
            return profiled, f"a profile of {MODEL} measured on {gpu.name} in {precision}", [note] if note else []
        whose = "data sheet of" if gpu.assumed else "site's words on"
        made = curves.on_gpus(self._trace(), nodes, sizes, self.precision)
        return made, f"the {whose} {gpu.name} and a trace with a batch of {self.batch}", [note] if note else []

    def _trace(self) -> Any:
        from sizing.base.parallel import Parallel
        from sizing.child import tracing

        if "trace" not in self._known:
            self._known["trace"] = tracing.trace(
                self._name,
                self.batch,
                Parallel(),
                python=self.python,
                timeout_s=self.timeout_s,
                memory_bytes=self.memory_bytes or tracing.MEMORY_BYTES,
            )
        return self._known["trace"]

    def _profiles(self, device: str) -> tuple[Mapping[StageShard, ShardProfile], str]:
        """Return the cached profiles of the script's present model on a type of GPU, and their precision.

        The requested precision comes first, or fp32 (a model profiled as it is) if none is requested; then the others.
        """
        from sizing.base.errors import SizingError
        from sizing.cells.shards import ShardProfile
        from sizing.choice.profile_times import AS_IT_IS
        from sizing.profiles.profile import Setting
        from sizing.profiles.store import Store

        source = f"{self.original or self.path}:{MODEL}"
        try:
            if self.original is not None and self.original.read_bytes() != self.path.read_bytes():
                return {}, ""
            store = Store()
            if (model := store.model(source)) is None or device not in store.devices(model):
                return {}, ""
            for precision in dict.fromkeys((self.precision or AS_IT_IS, *_PRECISIONS)):
                for optimizer in _OPTIMIZERS:
                    results = store.all(model, device, Setting(optimizer, precision))
                    found = {shard: each for shard, each in results.items() if isinstance(each, ShardProfile)}
                    # if the last stage fits no GPU, the stages before it are not the whole model
                    if found and max(shard.last for shard in found) == max(shard.last for shard in results):
                        return found, precision
        except (OSError, SizingError):
            pass  # an unreadable cache is like none: the trace is used
        return {}, ""

    def _run(self) -> Any:
        from sizing.child import stepping, tracing

        if "run" not in self._known:
            self._known["run"] = stepping.run(
                self._name,
                self.batch,
                python=self.python,
                timeout_s=self.timeout_s,
                memory_bytes=self.memory_bytes or tracing.MEMORY_BYTES,
            )
        return self._known["run"]

    @property
    def _name(self) -> str:
        from bftd.cli.size.shared.worker_memory import FUNCTION

        return f"{self.path}:{FUNCTION}"


def estimated(
    step: ScriptStep, spec: ElasticSpec, kinds: Sequence[NodeKind], own: Mapping[str, GpuType]
) -> tuple[list[tuple[CurveEstimate, Curve]], list[str]]:
    """Return the curves of the classes that have one, and a note for each class or detail that falls short."""
    from bftd.protocol.bounds import ESTIMATE_CLASSES_MOST
    from bftd.protocol.curves import CurveEstimate
    from sizing.base.errors import SizingError

    found, notes = [], []
    for kind in kinds[:ESTIMATE_CLASSES_MOST]:
        try:
            made, basis, remarks = step.on(kind, spec, own)
        except SizingError as error:
            notes.append(f"{kind.name}: {error}")
            continue
        notes += [f"{kind.name}: {remark}" for remark in remarks]
        points = tuple((nodes, float(f"{rate.value:.4g}")) for nodes, rate in made)
        found.append((CurveEstimate(kind.name, points, made[0][1].origin, basis), made))
    if len(kinds) > ESTIMATE_CLASSES_MOST:
        notes.append(f"{len(kinds) - ESTIMATE_CLASSES_MOST} more classes are left out")
    return found, list(dict.fromkeys(notes))


def _gpu(type_: str, kind: NodeKind, own: Mapping[str, GpuType]) -> tuple[GpuType, str]:
    from sizing.base import errors
    from sizing.inventory import gpus

    found = gpus.recognise(type_, kind.features)
    known = own.get(type_) or (own.get(found.type.name) if found else None)
    if known is not None:
        return known, ""
    if found is None:
        raise errors.UsageError(f"nothing is known of GPUs that Slurm calls {type_ or 'gpu'}; name them in gpus.json")
    return found.type, found.note


def _step(path: Path, batch: int | None, python: str, precision: str, timeout_s: float) -> ScriptStep:
    """Return a script's step if it can be traced; raises UsageError that says what to write."""
    from bftd.cli.size.shared import worker_memory

    try:
        step = worker_memory.find(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name the training script") from None
    if step is None:
        raise UsageError(f"{path.name} has no make_step(batch_size) at its top level, which an estimate needs")
    if not step.guarded:
        raise UsageError(f'{path.name}: importing it would train; train under `if __name__ == "__main__":`')
    batch = step.batch if batch is None else batch
    if batch is None:
        raise UsageError(f"{path.name}: say curve=estimate:N, the batch of one worker, or def make_step(batch_size=N)")
    return ScriptStep(path.absolute(), batch, python, precision, timeout_s)


def _classes_in(path: str) -> list[NodeKind]:
    from bftd.protocol.errors import Malformed
    from bftd.protocol.registration import NodeKind
    from sizing.files.text import text_of

    try:
        kinds = json.loads(text_of(path))
        return [NodeKind.from_json(item) for item in kinds]
    except (ValueError, TypeError, Malformed, RecursionError) as error:
        raise UsageError(f"--classes {path}: no list of classes of nodes: {error}") from None


def _classes_here(spec: ElasticSpec, config_path: str | None) -> list[NodeKind]:
    """Return the classes of harvested nodes that the job could use, as the daemon would form them."""
    from bftd import config_file
    from bftd.cli.jobs import submit
    from bftd.core.model.classes import usable
    from bftd.protocol.registration import NodeKind

    settings = config_file.load_found(config_path)
    known = submit.classes_of(settings, common.slurm_client(settings))
    kinds = [known[name] for name in usable(known, spec.requirements(()), "")]
    return [NodeKind(kind.name, kind.gpus, tuple(sorted(kind.features)), kind.cpus) for kind in kinds]


def _give_way(parent: int) -> None:
    """Take the lowest CPU priority, be the first to go if memory runs out, and end with the parent."""
    os.nice(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that child processes are ended
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:
        sys.exit(1)


def _shown(estimate: CurveEstimate, made: Curve) -> dict[str, Any]:
    low, high = [rate.low for _, rate in made], [rate.high for _, rate in made]
    return {**estimate.to_json(), "low": low, "high": high}


def _lines(found: Sequence[tuple[CurveEstimate, Curve]], notes: Sequence[str]) -> Iterator[str]:
    from bftd.base.tables import Column

    columns = [Column("CLASS"), Column("NODES", right=True), Column("SAMPLES/S", right=True), Column("BETWEEN")]
    rows = [
        (estimate.node_class, nodes, f"{rate.value:.4g}", f"{rate.low:.3g}-{rate.high:.3g}")
        for estimate, made in found
        for nodes, rate in made
    ]
    yield from common.table(columns, [tuple(map(str, row)) for row in rows])
    for estimate, _ in found:
        yield f"{estimate.node_class}: {estimate.origin}, from {estimate.basis}"
    yield from (f"note: {note}" for note in notes)
