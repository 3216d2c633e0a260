"""Estimates of steps compared with their real time and memory on a GPU, and the correction of its type."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sizing.base.errors import DoesNotFit, SizingError, Untraceable, UsageError
from sizing.base.estimate import Estimate
from sizing.base.json_fields import decoded
from sizing.base.parallel import Parallel
from sizing.child import launch, stepping
from sizing.child.stepping import GpuStep
from sizing.inventory.file import parse
from sizing.inventory.gpus import Checked, GpuType, recognise
from sizing.memory.peak import guarded_bytes
from sizing.model.trace import StepTrace
from sizing.step_time import datasheet

_MOST_LACKING = 0.15
"""The share of a GPU's memory that a correction may take off: a larger lack has another cause."""
_NO_NETWORK = 1.0  # bytes/s: one GPU needs no network
STEPS = launch.CHILD / "check_steps.py"
BATCHES: Mapping[str, int] = {
    "language_fp32": 4,
    "language_bf16": 8,
    "language_recomputed": 16,
    "language_accumulated": 16,
    "encoder_fp16": 32,
    "images_fp32": 64,
    "images_bf16": 96,
    "tables": 8192,
    "deep": 64,
}
"""The functions of STEPS, and the samples of each step."""


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A step's trace with its real run, and on a known type of GPU its assumed time with the measured one."""

    name: str
    trace: StepTrace
    real: GpuStep
    gpu: GpuType

    @property
    def expected_s(self) -> Estimate:
        """The time by the rule alone, without earlier checks of the type."""
        return datasheet.step_s(
            datasheet.traced(self.trace), Parallel(), replace(self.gpu, checked={}), 1, _NO_NETWORK, ""
        )

    @property
    def corrected_s(self) -> Estimate:
        """The time as corrected by the type's checks."""
        return datasheet.step_s(datasheet.traced(self.trace), Parallel(), self.gpu, 1, _NO_NETWORK, "")

    @property
    def ratio(self) -> float:
        """The measured time over the assumed one."""
        return self.real.step_s.value / self.expected_s.value

    @property
    def lacking_bytes(self) -> int:
        """The GPU memory in use beyond the peak with its guard band, if the step does not run within that."""
        return 0 if self.real.within_guard else max(0, self.real.in_use_bytes - guarded_bytes(self.trace.peak_bytes))

    @property
    def kind(self) -> str:
        """The kind of work that bounds the step."""
        return datasheet.bound_by(datasheet.traced(self.trace), self.gpu, "")

    def to_json(self) -> dict[str, Any]:
        """Return the form of `bft size check --json`."""
        return {
            "step": self.name,
            "batch": self.real.batch,
            "kind": self.kind,
            "traced_bytes": self.trace.peak_bytes,
            "allocated_bytes": self.real.allocated_bytes,
            "reserved_bytes": self.real.reserved_bytes,
            "in_use_bytes": self.real.in_use_bytes,
            "guarded_bytes": guarded_bytes(self.trace.peak_bytes),
            "within_guard": self.real.within_guard,
            "in_room": self.real.within_guard,  # the old name, until 1.1
            "step_s": asdict(self.real.step_s),
            "expected_s": asdict(self.expected_s),
        }


def within(real: GpuStep, told: Estimate) -> bool:
    """Whether a measured time lies in the estimated range."""
    return told.low <= real.step_s.value <= told.high


def named_type(named: str, own: Mapping[str, GpuType]) -> GpuType:
    """Return the type that the site or the catalogue calls so; raise UsageError if the name is unknown or ambiguous."""
    known = recognise(named)
    found = own.get(named) or (known.type if known is not None and not known.note else None)
    if found is None:
        raise UsageError(f"--gpu {named}: no type that is known; bft size inventory shows those of this centre")
    return found


def type_of(device: str, own: Mapping[str, GpuType], named: str = "") -> GpuType:
    """Return the type of a GPU that its driver calls `device`, by the site's name: `own` are the site's types by name.

    `named` is the user's name for it. Raises UsageError if the type is unknown, ambiguous, or differs from `named`.
    """
    known = recognise(device)
    if known is not None and known.note:
        known = recognise(f"{device} sxm")  # the form factor that drivers leave out: NVIDIA H200 (not NVL)
    if named:
        found = named_type(named, own)
        if known is not None and not known.note and known.type.name not in (found.name, found.like) and not found.slice:
            raise UsageError(
                f"{named}: the driver calls it {device}; give {named} among the names of {known.type.name} in gpus.json"
            )
        return found
    if known is None or known.note:
        raise UsageError(f"{device} could be several types, or none that is known: name it with --gpu TYPE")
    mine = {each.name: each for each in own.values() if known.type.name in (each.name, each.like)}
    if len(mine) > 1:
        raise UsageError(f"{device} could be any of {', '.join(sorted(mine))}: name it with --gpu TYPE")
    return next(iter(mine.values()), known.type)


def has_units(trace: StepTrace, gpu: GpuType) -> bool:
    """Whether a GPU has units for the products of a step, or only runs them as fp32, which is never used to train."""
    kind = datasheet.bound_by(datasheet.traced(trace), gpu, "")
    return kind not in ("bf16", "fp16") or gpu.flops.get(kind, 0.0) > gpu.flops.get("fp32", 0.0)


def corrected(gpu: GpuType, rows: Sequence[ComparedStep]) -> GpuType:
    """Return the type corrected by these steps: less memory by the guard band's lack, and the pace by kind of step."""
    kinds: dict[str, list[float]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row.ratio)
    has_bytes, lacking_bytes = min(row.real.memory_bytes for row in rows), max(row.lacking_bytes for row in rows)
    if lacking_bytes > _MOST_LACKING * has_bytes:
        worst = max(rows, key=lambda row: row.lacking_bytes)
        raise SizingError(
            f"{worst.name} took {lacking_bytes / 2**30:.1f} GiB more than the guard band: nothing was kept"
        )
    return replace(
        gpu,
        memory_bytes=has_bytes - lacking_bytes,
        checked={
            kind: Checked(len(ratios), min(ratios), statistics.median(ratios), max(ratios))
            for kind, ratios in sorted(kinds.items())
        },
        assumed=gpu.assumed - {"memory_bytes"},
    )


def kept_in(text: str, gpu: GpuType, name: str) -> str:
    """Return the text of a file of GPUs ("" for a new one) with a type's correction; all else in it stays.

    Raises UsageError if the file, called `name`, is not a file of GPUs.
    """
    if text:
        parse(text, name=name)
    whole = decoded(text, name) if text else {}
    types = whole.setdefault("types", {})
    entry = types.setdefault(gpu.name, {"like": gpu.like} if gpu.like else {})
    entry |= {"memory_bytes": gpu.memory_bytes, "checked": {kind: asdict(it) for kind, it in gpu.checked.items()}}
    if "memory_bytes" in entry.get("assumed", ()):
        entry["assumed"].remove("memory_bytes")
    new = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    parse(new, name=name)
    return new


def measured(
    limits: Mapping[str, int], python: str, timeout_s: float, tell: Callable[[str], None]
) -> Iterator[tuple[str, GpuStep | str | None]]:
    """Yield the name of each of STEPS with its run on this GPU, or the reason it failed; None if it does not fit.

    `limits` are the bytes that a GPU is asked for by step; `tell` is called with the name of each step at its start.
    Raises UsageError if there is no GPU, another process uses it, or no Python has torch.
    """
    for name, batch in BATCHES.items():
        tell(name)
        try:
            yield name, stepping.run_on_gpu(f"{STEPS}:{name}", batch, limits[name], python=python, timeout_s=timeout_s)
        except DoesNotFit:
            yield name, None
        except Untraceable as error:
            yield name, str(error)
