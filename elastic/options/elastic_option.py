"""The value of `--elastic`: how far a trainer may grow and shrink, and its options."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from bftd.protocol.requirements import FEATURE, GPU_TYPE, TYPES_MOST, Requirements
from bftd.protocol.sizes import Sizes
from elastic.backends import KINDS
from elastic.base.errors import UsageError
from elastic.base.timing import FROZEN_LEAST_S, FROZEN_S
from elastic.options.node_share import NodeShare

_KEYS = (
    "backend", "sizes", "weight", "up", "down", "workers", "gpu", "without", "curve", "frozen", "resume", "state",
    "container", "share", "save_share",
)  # fmt: skip
_FLAGS = ("mix",)
_COUNT = "[0-9]{1,9}"
_PROGRESS = "progress="
"""The last option: the rest of the value is its regular expression, commas included."""
COMPLETED = (
    *(f"backend={name}" for name in KINDS),
    "curve=estimate",
    *_FLAGS,
    *(f"{key}=" for key in _KEYS if key not in ("backend", "curve")),
    _PROGRESS,
)
"""The options as a shell completes them, with the values that are known."""

# None of these characters has a meaning to a shell, to Slurm's comments or to JSON.
_PATH = "/[A-Za-z0-9_=:.+@/~#%-]+"
# With a leading dash, it would be an option of the container runtime.
_IMAGE = "(?!-)[A-Za-z0-9_=:.+@/~#%-]+"
_NAMED = re.compile(r"\(\?P<(\w*)>")
_READ = ("step", "samples", "loss", "total_steps")
"""The values that are read from a line of a script's output."""
_NOT_ASKED = NodeShare(asked=False)
SAVE_SHARE_MOST = 0.05
"""The highest share of the time that saves may take: one save in twenty times what it costs."""

_TRAINER = "[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}"


@dataclass(frozen=True)
class ElasticSpec:
    """The user's `--elastic` options; `backend` is None if the script decides.

    `without` lists types of GPUs to avoid. `estimates` asks for an estimate of the speed, with `estimate_batch` samples
    a worker, None for the default of the script's function. `resume` is the id of the trainer from whose checkpoint
    this one resumes: usually a job's number, optionally followed by @CLUSTER. `state_path` is the folder on a shared
    file system that holds large checkpoints, `container` the image that the workers run in, and `progress` the regular
    expression that reads their steps from their output. `share` is the part of a node that is asked for if nodes can be
    shared. `save_share` is the share of the time that saves may take if bftd chooses when to save, None if bftd chooses
    the share too.
    """

    nodes_min: int
    nodes_max: int
    backend: str | None = None
    sizes: tuple[int, ...] | None = None
    weight: float = 1.0
    up_cost_s: float | None = None
    down_cost_s: float | None = None
    workers_per_node: int | None = None
    gpu: str = ""
    gpus: int = 0
    mix: bool = False
    without: tuple[str, ...] = ()
    estimates: bool = False
    estimate_batch: int | None = None
    frozen_s: float | None = None
    resume: str | None = None
    state_path: str | None = None
    container: str | None = None
    progress: str | None = None
    share: NodeShare = _NOT_ASKED
    save_share: float | None = None

    @classmethod
    def parse(cls, text: str) -> ElasticSpec:
        """Parse "MIN-MAX" and options, with commas between them.

        The options are backend=B, sizes=1:2:4, weight=W, up=S, down=S, workers=N, gpu=TYPE:N, without=TYPE:TYPE, mix,
        curve=estimate:BATCH, frozen=S, resume=JOBID, state=PATH, container=IMAGE, share=CPUS:MEMORY, save_share=SHARE,
        and at the end progress=REGEX. Raises UsageError.
        """
        front, has_progress, regex = text.partition("," + _PROGRESS)
        if not (front.isascii() and front.isprintable()) or " " in front:
            # Not repeated in the message, which goes to a terminal.
            raise UsageError(
                "--elastic: no spaces and ASCII alone: give the nodes as MIN-MAX, for example --elastic=1-8"
            )
        head, *rest = front.split(",")
        nodes_min, nodes_max = _range(head, text)
        options = dict(_option(part) for part in rest)
        gpu, gpus = _gpu(options.get("gpu"))
        estimates, estimate_batch = _curve(options.get("curve"))
        return cls(
            nodes_min,
            nodes_max,
            backend=_backend(options.get("backend")),
            sizes=_sizes(options.get("sizes"), nodes_min, nodes_max),
            weight=_positive(options.get("weight"), "weight") or 1.0,
            up_cost_s=_positive(options.get("up"), "up"),
            down_cost_s=_positive(options.get("down"), "down"),
            workers_per_node=_count(options.get("workers"), "workers"),
            gpu=gpu,
            gpus=gpus,
            mix="mix" in options,
            without=_without(options.get("without")),
            estimates=estimates,
            estimate_batch=estimate_batch,
            frozen_s=_positive(options.get("frozen"), "frozen"),
            resume=_trainer(options.get("resume")),
            state_path=_state_path(options.get("state")),
            container=_image(options.get("container")),
            progress=_progress(regex) if has_progress else None,
            share=NodeShare.parse(options.get("share")),
            save_share=_save_share(options.get("save_share")),
        )

    @property
    def allowed(self) -> Sizes:
        """The numbers of nodes that the trainer can run on."""
        return Sizes(self.nodes_min, self.nodes_max, self.sizes)

    @property
    def frozen_after_s(self) -> float:
        """The seconds without an answer or a sign of life after which a worker counts as frozen."""
        return max(FROZEN_LEAST_S, self.frozen_s if self.frozen_s is not None else FROZEN_S)

    def requirements(self, features: tuple[str, ...]) -> Requirements:
        """Return what is asked of the nodes, including the features that `--constraint` names."""
        return Requirements(self.gpu, self.gpus, features, self.mix, self.without)

    def format(self) -> str:
        """Return the value in the form that `parse` reads."""
        parts = [f"{self.nodes_min}-{self.nodes_max}"]
        if self.backend:
            parts.append(f"backend={self.backend}")
        if self.sizes:
            parts.append("sizes=" + ":".join(map(str, self.sizes)))
        if self.weight != 1.0:
            parts.append(f"weight={_shortest(self.weight)}")
        if self.up_cost_s is not None:
            parts.append(f"up={_shortest(self.up_cost_s)}")
        if self.down_cost_s is not None:
            parts.append(f"down={_shortest(self.down_cost_s)}")
        if self.workers_per_node is not None:
            parts.append(f"workers={self.workers_per_node}")
        if self.gpu or self.gpus:
            parts.append("gpu=" + ":".join(filter(None, (self.gpu, str(self.gpus) if self.gpus else ""))))
        if self.without:
            parts.append("without=" + ":".join(self.without))
        if self.estimates:
            parts.append("curve=estimate" + (f":{self.estimate_batch}" if self.estimate_batch else ""))
        if self.frozen_s is not None:
            parts.append(f"frozen={_shortest(self.frozen_s)}")
        if self.mix:
            parts.append("mix")
        if self.resume:
            parts.append(f"resume={self.resume}")
        if self.state_path:
            parts.append(f"state={self.state_path}")
        if self.container:
            parts.append(f"container={self.container}")
        if share := self.share.format():
            parts.append(f"share={share}")
        if self.save_share is not None:
            parts.append(f"save_share={_shortest(self.save_share)}")
        if self.progress:
            parts.append(_PROGRESS + self.progress)
        return ",".join(parts)


def features_of(constraint: str) -> tuple[str, ...]:
    """Return the features that a value of `--constraint` asks for, all of them on each node; raises UsageError."""
    names = tuple(dict.fromkeys(constraint.split("&")))
    if not all(map(FEATURE.fullmatch, names)):
        raise UsageError(
            f"--constraint={constraint!r}: an elastic job takes features joined by &, "
            "for example --constraint='a100&ib'"
        )
    return names


def _shortest(number: float) -> str:
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def _range(head: str, text: str) -> tuple[int, int]:
    match = re.fullmatch(rf"({_COUNT})(?:-({_COUNT}))?", head)
    if not match:
        raise UsageError(f"--elastic={text}: give the nodes as MIN-MAX, for example --elastic=1-8")
    low = int(match[1])
    high = int(match[2] or low)
    if low < 1:
        raise UsageError(f"--elastic={text}: the smallest number of nodes is 1; a trainer may wait at 0 in any case")
    if low > high:
        raise UsageError(f"--elastic={text}: MIN is above MAX; did you mean --elastic={high}-{low}?")
    return low, high


def _option(part: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    if part in _FLAGS:
        return part, ""
    if not equals or key not in _KEYS:
        known = {**{key: f"{key}=" for key in (*_KEYS, "progress")}, **{flag: flag for flag in _FLAGS}}
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {known[near[0]]}?" if near else "known: " + ", ".join(known.values())
        raise UsageError(f"--elastic: unknown option {part!r}; {hint}")
    return key, value


def _backend(value: str | None) -> str | None:
    if value is not None and value not in KINDS:
        near = difflib.get_close_matches(value, KINDS, 1)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(KINDS)
        raise UsageError(f"--elastic: unknown back-end {value!r}; {hint}")
    return value


def _sizes(value: str | None, low: int, high: int) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not re.fullmatch(rf"{_COUNT}(:{_COUNT})*", value):
        raise UsageError(f"--elastic: sizes={value}: give node counts between colons, for example sizes=1:2:4:8")
    sizes = tuple(sorted({int(size) for size in value.split(":")}))
    outside = [size for size in sizes if not low <= size <= high]
    if outside:
        raise UsageError(f"--elastic: size {outside[0]} is outside {low}-{high}; leave it out or widen the range")
    return sizes


def _positive(value: str | None, name: str) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise UsageError(f"--elastic: {name}={value}: give a positive number")
    return number


def _save_share(value: str | None) -> float | None:
    share = _positive(value, "save_share")
    if share is not None and share > SAVE_SHARE_MOST:
        raise UsageError(
            f"--elastic: save_share={value}: at most {SAVE_SHARE_MOST:g} of the time may go to saves; a script that "
            "saves more often gives save_every itself"
        )
    return share


def _gpu(value: str | None) -> tuple[str, int]:
    """Return the type and the least number of GPUs a node must have: "a100", "a100:4" or "4"."""
    if value is None:
        return "", 0
    kind, colon, count = value.partition(":")
    if not colon and kind.isdecimal():
        kind, count = "", kind
    counted = re.fullmatch(_COUNT, count) and int(count) >= 1
    typed = GPU_TYPE.fullmatch(kind) and not kind.isdecimal()
    if (kind and not typed) or (not kind and colon) or (count and not counted) or (colon and not count) or not value:
        raise UsageError(f"--elastic: gpu={value}: give a type, a number or both, for example gpu=a100:4")
    return kind, int(count or 0)


def _without(value: str | None) -> tuple[str, ...]:
    """Parse types of GPUs with colons between them."""
    if value is None:
        return ()
    names = value.split(":")
    if len(names) > TYPES_MOST or not all(GPU_TYPE.fullmatch(name) and not name.isdecimal() for name in names):
        raise UsageError(f"--elastic: without={value}: give types of GPUs between colons, for example without=k80:v100")
    return tuple(dict.fromkeys(names))


def _curve(value: str | None) -> tuple[bool, int | None]:
    """Return whether to estimate the speed, and the batch of one worker to do so with."""
    if value is None:
        return False, None
    word, colon, count = value.partition(":")
    if word != "estimate" or (colon and not (re.fullmatch(_COUNT, count) and int(count) >= 1)):
        raise UsageError(
            f"--elastic: curve={value}: give curve=estimate, or with the batch of one worker curve=estimate:32"
        )
    return True, int(count) if colon else None


def _trainer(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(_TRAINER, value):
        raise UsageError(f"--elastic: resume={value}: give the id of a job, as bft checkpoints ls shows it")
    return value


def _state_path(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(_PATH, value):
        raise UsageError(f"--elastic: state={value}: give a folder from / on, on a file system that all nodes have")
    return value


def _image(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(_IMAGE, value):
        raise UsageError(f"--elastic: container={value}: give an image as the site's container runtime takes it")
    return value


def _progress(value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise UsageError(
            "--elastic: progress=: write other letters than those of ASCII as Python does, \\xe9 for example"
        )
    unknown = [name for name in _NAMED.findall(value) if name not in _READ]
    if unknown or not re.search(r"\(\?P<(step|samples)>", value):
        raise UsageError(
            f"--elastic: progress={value}: name a group step or samples, and loss if it is there, for example "
            "progress=step (?P<step>[0-9]+)"
        )
    try:
        groups = set(re.compile(value).groupindex)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--elastic: progress={value}: not a regular expression: {error}") from None
    if not {"step", "samples"} & groups:  # such a group is in brackets or behind a backslash
        raise UsageError(f"--elastic: progress={value}: what looks like a group there is none")
    return value


def _count(value: str | None, name: str) -> int | None:
    if value is None:
        return None
    if not re.fullmatch(_COUNT, value) or int(value) < 1:
        raise UsageError(f"--elastic: {name}={value}: give a whole number of at least 1")
    return int(value)
