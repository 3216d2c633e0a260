"""A catalogue of GPUs from data sheets, and the recognition of a site's names in Slurm.

Memory is what a program can use: the board's, less 1 % and half a GiB for the driver, and first less a sixteenth if
error correction uses part of the same memory (GDDR6 of data-centre cards). Rates are those of dense matrices with sums
in fp32, never the doubled ones of sparse matrices; a precision that a GPU has no units for has the rate of fp32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

GIB = 2**30
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
_FIELDS = frozenset({"memory_bytes", "flops", "memory_bytes_s", "link_bytes_s", "link", "cost"})
_ECC = 15 / 16  # the share of memory left if error correction uses part of it
# An hour costs as the square root of the speed: prices of centres and clouds grow more slowly than a GPU's rate.
_COST_FP16 = 312.0


@dataclass(frozen=True, slots=True)
class Checked:
    """The real time of `steps` checked steps of one kind on a type over the assumed time: least, median and most."""

    steps: int
    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True)
class GpuType:
    """One model of GPU. `memory_bytes` is usable by a program; bandwidths are bytes a second, one way.

    `flops` is the peak of dense matrix products a second by precision ("fp32", "tf32", "fp16", "bf16"). `link_bytes_s`
    joins the GPUs of a node, `cost` is the worth of an hour relative to other types (any unit). `assumed` names the
    fields that come from data sheets and not from the site, and `names` are those in Slurm's gres that the site maps to
    this type. A `slice` is a part of a GPU (MIG): a job gets one, as slices cannot communicate. `like` is the catalogue
    type that the site named for all fields it does not give, "" if none. `checked` corrects assumed times by the bound
    of a step (`cost.bound_by`); empty if nothing was measured.
    """

    name: str
    memory_bytes: int
    flops: Mapping[str, float]
    memory_bytes_s: float
    link_bytes_s: float
    link: str = "pcie"
    cost: float = 1.0
    assumed: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    slice: bool = False
    like: str = ""
    checked: Mapping[str, Checked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """The type that a name means; `note` is one sentence if it could mean others too.

    `most_bytes` is the memory of the largest possible type, 0 if there is no other.
    """

    type: GpuType
    note: str = ""
    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Board:
    """One row of the catalogue: the name as words and numbers, and the data sheet's figures.

    `gb` is the board's memory in GiB, rates are in TFLOPS (fp32, tf32, fp16, bf16), bandwidths in GB/s one way. `form`
    is a word that tells it from others of the same `words`. A `rare` board is meant only if its memory is named.
    """

    name: str
    words: str
    gb: float
    tflops: tuple[float, float, float, float]
    memory_gb_s: float
    link_gb_s: float
    link: str = "pcie"
    form: str = ""
    ecc: bool = False
    rare: bool = False

    @property
    def type(self) -> GpuType:
        usable = self.gb * (_ECC if self.ecc else 1.0) * 0.99 - 0.5
        return GpuType(
            name=self.name,
            memory_bytes=int(usable * GIB),
            flops={name: rate * 1e12 for name, rate in zip(PRECISIONS, self.tflops, strict=True)},
            memory_bytes_s=self.memory_gb_s * 1e9,
            link_bytes_s=self.link_gb_s * 1e9,
            link=self.link,
            cost=round((self.tflops[2] / _COST_FP16) ** 0.5, 2),
            assumed=_FIELDS,
        )


_H100 = (66.9, 494.7, 989.4, 989.4)
_BOARDS = (
    _Board("p100-pcie-12gb", "p 100", 12, (9.3, 9.3, 18.7, 9.3), 549, 16, form="pcie"),
    _Board("p100-pcie-16gb", "p 100", 16, (9.3, 9.3, 18.7, 9.3), 732, 16, form="pcie"),
    _Board("p100-sxm-16gb", "p 100", 16, (10.6, 10.6, 21.2, 10.6), 732, 80, "nvlink", "sxm"),
    _Board("v100-pcie-16gb", "v 100", 16, (14.0, 14.0, 112.0, 14.0), 900, 16, form="pcie"),
    _Board("v100-pcie-32gb", "v 100", 32, (14.0, 14.0, 112.0, 14.0), 900, 16, form="pcie"),
    _Board("v100-sxm-16gb", "v 100", 16, (15.7, 15.7, 125.0, 15.7), 900, 150, "nvlink", "sxm"),
    _Board("v100-sxm-32gb", "v 100", 32, (15.7, 15.7, 125.0, 15.7), 900, 150, "nvlink", "sxm"),
    _Board("v100s-pcie-32gb", "v 100 s", 32, (16.4, 16.4, 130.0, 16.4), 1134, 16),
    _Board("t4", "t 4", 16, (8.1, 8.1, 65.0, 8.1), 320, 16, ecc=True),
    _Board("a10", "a 10", 24, (31.2, 62.5, 125.0, 125.0), 600, 32, ecc=True),
    _Board("a30", "a 30", 24, (10.3, 82.0, 165.0, 165.0), 933, 32),
    _Board("a40", "a 40", 48, (37.4, 74.8, 149.7, 149.7), 696, 32, ecc=True),
    _Board("l4", "l 4", 24, (30.3, 60.0, 121.0, 121.0), 300, 32, ecc=True),
    _Board("l40", "l 40", 48, (90.5, 90.5, 181.0, 181.0), 864, 32, ecc=True),
    _Board("l40s", "l 40 s", 48, (91.6, 183.0, 362.0, 362.0), 864, 32, ecc=True),
    _Board("a100-pcie-40gb", "a 100", 40, (19.5, 156.0, 312.0, 312.0), 1555, 32, form="pcie"),
    _Board("a100-sxm-40gb", "a 100", 40, (19.5, 156.0, 312.0, 312.0), 1555, 300, "nvlink", "sxm"),
    _Board("a100-sxm-64gb", "a 100", 64, (19.5, 156.0, 312.0, 312.0), 1640, 200, "nvlink", "sxm", rare=True),
    _Board("a100-pcie-80gb", "a 100", 80, (19.5, 156.0, 312.0, 312.0), 1935, 32, form="pcie"),
    _Board("a100-sxm-80gb", "a 100", 80, (19.5, 156.0, 312.0, 312.0), 2039, 300, "nvlink", "sxm"),
    _Board("h100-sxm-64gb", "h 100", 64, _H100, 2020, 300, "nvlink", "sxm", rare=True),
    _Board("h100-pcie-80gb", "h 100", 80, (51.0, 378.0, 756.0, 756.0), 2000, 64, form="pcie"),
    _Board("h100-sxm-80gb", "h 100", 80, _H100, 3350, 450, "nvlink", "sxm"),
    _Board("h100-nvl-94gb", "h 100", 94, (60.0, 417.5, 835.0, 835.0), 3900, 64, form="nvl"),
    _Board("h200-nvl-141gb", "h 200", 141, (60.0, 417.5, 835.0, 835.0), 4800, 64, form="nvl"),
    _Board("h200-sxm-141gb", "h 200", 141, _H100, 4800, 450, "nvlink", "sxm"),
    # Sold as 96 and 144 GB; the system shows 95 for the smaller one.
    _Board("gh200-96gb", "gh 200", 95, _H100, 4000, 150, "nvlink"),
    _Board("gh200-144gb", "gh 200", 141, _H100, 4900, 150, "nvlink"),
    _Board("b200-180gb", "b 200", 180, (75.0, 1100.0, 2250.0, 2250.0), 7672, 900, "nvlink"),
    _Board("rtx-2080ti", "2080 ti", 11, (13.4, 13.4, 53.8, 13.4), 616, 16),
    _Board("rtx-3090", "3090", 24, (35.6, 35.6, 71.0, 71.0), 936, 32),
    _Board("rtx-4090", "4090", 24, (82.6, 82.6, 165.2, 165.2), 1008, 32),
    _Board("rtx-a5000", "a 5000", 24, (27.8, 55.6, 111.1, 111.1), 768, 32),
    _Board("rtx-a6000", "a 6000", 48, (38.7, 77.4, 154.8, 154.8), 768, 32),
    _Board("quadro-rtx-6000", "rtx 6000", 24, (16.3, 16.3, 130.5, 16.3), 672, 16, form="quadro"),
    _Board("quadro-rtx-8000", "rtx 8000", 48, (16.3, 16.3, 130.5, 16.3), 672, 16),
    _Board("rtx-6000-ada", "rtx 6000", 48, (91.1, 182.1, 364.2, 364.2), 960, 32, form="ada", ecc=True),
    _Board("mi100", "mi 100", 32, (46.1, 46.1, 184.6, 92.3), 1228, 46, "infinity"),
    _Board("mi210", "mi 210", 64, (45.3, 45.3, 181.0, 181.0), 1638, 50, "infinity"),
    # Boards that are two GPUs to a program (two dies, two stacks) are listed as one of the two.
    _Board("mi250", "mi 250", 64, (45.3, 45.3, 181.0, 181.0), 1638, 50, "infinity"),
    _Board("mi250x", "mi 250 x", 64, (47.9, 47.9, 191.5, 191.5), 1638, 50, "infinity"),
    # The 128 GB are shared with the processor.
    _Board("mi300a", "mi 300 a", 112, (122.6, 490.3, 980.6, 980.6), 5300, 128, "infinity"),
    _Board("mi300x", "mi 300 x", 192, (163.4, 653.7, 1307.4, 1307.4), 5300, 448, "infinity"),
    _Board("mi325x", "mi 325 x", 256, (163.4, 653.7, 1307.4, 1307.4), 6000, 448, "infinity"),
    _Board("max-1550", "max 1550", 64, (26.2, 209.5, 419.0, 419.0), 1638, 26, "xelink"),
    _Board("max-1550", "pvc", 64, (26.2, 209.5, 419.0, 419.0), 1638, 26, "xelink"),
)
CATALOGUE: Mapping[str, GpuType] = {board.name: board.type for board in _BOARDS}

_WORD = re.compile(r"[a-z]+|\d+")
_FORMS = {"pcie": "pcie", "sxm": "sxm", "hgx": "sxm", "nvl": "nvl", "quadro": "quadro", "ada": "ada"}
_MIG = re.compile(r"(?<![a-z0-9])(?:mig[_.-]?)?(\d)g[._](\d+)gb?")
# Eighths of the memory that a slice has, by its sevenths of the GPU.
_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
_SLICE_MEMORY = 7 / 8  # a slice's real memory over its rounded-up nominal size: 18 GB are 16.0 GiB
# Words that a feature may have besides a GPU's name: a feature with other words (a rack's, say) means something else.
_VENDORS = "nvidia tesla geforce quadro rtx amd instinct radeon intel gpu vram gpumem generation"
_SIZES = frozenset({"g", "gb", "gib"})
_FILLING = frozenset([*_VENDORS.split(), *_FORMS, *_SIZES, "mem", "hbm", "e"])


def recognise(name: str, features: Sequence[str] = ()) -> Known | None:
    """Find the type that a name in gres means ("nvidia_a100-sxm4-80gb", "h100", "a100_1g.5gb"), None if there is none.

    `features` are the node's: they decide if the name does not, and replace it if it is "". An ambiguous name is taken
    for the smallest and slowest possible type, which is noted. Slices are types of their own.
    """
    return _recognised(name, tuple(features))


@lru_cache(maxsize=1024)  # thousands of nodes have the same few names and features
def _recognised(name: str, features: tuple[str, ...]) -> Known | None:
    lowered = name.lower()
    slice_of = _MIG.search(lowered)
    words = _words(lowered[: slice_of.start()] if slice_of else lowered)
    boards = _boards_of(words)
    told = [words]
    for feature in map(_words, features):
        if _speaks_of_gpus(feature):
            named = _boards_of(feature)
            boards = boards or named
            if not named or named == boards:
                told.append(feature)
    if not boards:
        return None
    for spoken in told:
        boards = _narrowed(boards, spoken)
    if slice_of:
        sevenths, gb = int(slice_of[1]), int(slice_of[2])
        whole = gb * 8 / _EIGHTHS.get(sevenths, 8)
        boards = [board for board in boards if abs(board.gb - whole) <= 0.15 * whole] or boards
    common = [board for board in boards if not board.rare] or boards
    board = min(common, key=lambda board: (board.gb, board.tflops[2], board.link_gb_s))
    note = _note(name, board, common) if len(common) > 1 and not slice_of else ""
    most_bytes = max(other.type.memory_bytes for other in common) if note else 0
    return Known(_slice(board.type, sevenths, gb) if slice_of else board.type, note, most_bytes)


def _note(name: str, board: _Board, boards: Iterable[_Board]) -> str:
    others = ", ".join(other.name for other in boards if other != board)
    return (
        f"{name or 'a GPU without a name'} is taken for {board.name}, the least that it can be (else {others}): "
        "a feature of its nodes or a file of GPUs tells which"
    )


def _slice(whole: GpuType, sevenths: int, gb: int) -> GpuType:
    return replace(
        whole,
        name=f"{whole.name}-{sevenths}g.{gb}gb",
        memory_bytes=min(int(gb * _SLICE_MEMORY * GIB), whole.memory_bytes),
        flops={precision: rate * sevenths / 8 for precision, rate in whole.flops.items()},
        memory_bytes_s=whole.memory_bytes_s * _EIGHTHS.get(sevenths, sevenths) / 8,
        cost=round(whole.cost * sevenths / 8, 3),
        slice=True,
    )


def _words(text: str) -> list[str]:
    """Split a name into words and numbers: "A100-SXM4-80GB" is a 100 sxm 4 80 gb."""
    # The H100 with HBM3 is the SXM one: its driver names it by HBM3.
    return _WORD.findall(text.lower().replace("hbm3", "sxm-3"))


def _boards_of(words: Sequence[str]) -> list[_Board]:
    """Return the boards with the longest of the catalogue names found in the words."""
    text = f" {' '.join(words)} "
    found = [board for board in _BOARDS if f" {board.words} " in text]
    longest = max((len(board.words) for board in found), default=0)
    return [board for board in found if len(board.words) == longest]


def _speaks_of_gpus(words: Sequence[str]) -> bool:
    """Whether a feature describes a GPU, and nothing else."""
    own = {word for board in _boards_of(words) for word in board.words.split()}
    if any(word not in own and word not in _FILLING and not word.isdecimal() for word in words):
        return False
    return bool(own or _FORMS.keys() & set(words) or _SIZES & set(words))


def _narrowed(boards: list[_Board], words: Sequence[str]) -> list[_Board]:
    """Return the boards whose memory and form the words name, or all if they name none."""
    own = boards[0].words.split()
    rest = list(words)
    for word in own:
        if word in rest:
            rest.remove(word)
    sized = [board for board in boards if board.name.removesuffix("gb").rpartition("-")[2] in rest]
    boards = sized or boards
    forms = {_FORMS[word] for word in words if word in _FORMS}
    return [board for board in boards if board.form in forms] or boards
