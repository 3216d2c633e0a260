"""The launcher in a batch script: the program that starts its processes, and how many on how many nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_BY_NODE = re.compile(
    r"(?<![-\w.])(torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch|accelerate\.commands\.launch|deepspeed)(?![-\w./=])(.*)"
)
"""Launchers that start a node's processes themselves, and so want one task per node, with their options."""
_BY_TASK = re.compile(r"(?<![-\w.])(srun|mpirun|mpiexec)(?![-\w./=])(.*)")
"""Launchers that start a command on all nodes of a job, once a task."""
_PROGRAM = re.compile(r"(?:^|\s)(?!-)(?:\S*python\S*|\S+\.(?:py|sh)|bash|sh)(?=\s|$)")
"""The program behind a launcher: options from there on are its own."""
_COMMENT = re.compile(r"(^|\s)#.*")
_NO_LAUNCH = re.compile(r"\s*(import|from|pip|conda|mamba|module|echo|printf|which)\b")
_ASSIGNMENT = re.compile(r"\s*(export\s+)?\w+=")
_GPUS = {"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"}
# The options of each launcher by name: nodes, processes per node, processes in all.
_NUMBERS: Mapping[str, tuple[str, str, str]] = {
    "torchrun": (r"--nnodes", r"--nproc[-_]per[-_]node", ""),
    "accelerate": (r"--num[-_]machines", "", r"--num[-_]processes"),
    "deepspeed": (r"--num_nodes", r"--num_gpus", ""),
    "srun": (r"(?:-N|--nodes)", r"--ntasks-per-node", r"(?:-n|--ntasks)"),
    "mpirun": ("", r"(?:-ppn|--?npernode|--map-by[= ]+ppr:)", r"(?:--?np|-n)"),
}


@dataclass(frozen=True, slots=True)
class Launch:
    """A command of a script that starts processes; None is as many as the job has nodes, or GPUs on a node.

    `by_node` launchers are one task per node. `program` is "" where none was found.
    """

    program: str
    nodes: int | None
    per_node: int | None
    total: int | None = None
    by_node: bool = False

    def fills(self, nodes: int, per_node: int) -> bool:
        """Whether it starts one process on each GPU of a job."""
        return (
            self.nodes in (None, nodes) and self.per_node in (None, per_node) and self.total in (None, nodes * per_node)
        )

    @property
    def words(self) -> str:
        """The predicate of a sentence on it."""
        by = f" by {self.program}" if self.program else ""
        if self.total is not None:
            return f"starts {_count(self.total, 'process')} in all{by}"
        each = "one process a GPU" if self.per_node is None else f"{_count(self.per_node, 'process')} a node"
        if not self.program and self.per_node == 1:
            each = "one process"
        return f"starts {each} on {'all nodes' if self.nodes is None else _count(self.nodes, 'node')}{by}"


def launches(text: str, options: Mapping[str, str | None]) -> tuple[Launch, ...]:
    """Return the launches in a batch script with such options of sbatch, by their long names; at least one.

    A number that is not literal (--nproc-per-node=$SLURM_GPUS_ON_NODE) is taken for the job's own.
    """
    lines = [_COMMENT.sub("", line) for line in text.replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if not _NO_LAUNCH.match(line)]
    by_task = [found for line in lines if (found := _BY_TASK.search(line))]
    by_node = []
    for line in lines:
        if found := _BY_NODE.search(line):
            everywhere = _BY_TASK.search(line[: found.start()]) or (by_task and _ASSIGNMENT.match(line))
            by_node.append(_of_node(found[1], found[2], everywhere=bool(everywhere)))
    if by_node:
        return tuple(by_node)
    if by_task:
        return tuple(_of_tasks(found[1], found[2], options) for found in by_task)
    # a user who names GPUs knows what starts on them
    return (Launch("", 1, None if _GPUS & options.keys() else 1),)


def _of_node(program: str, words: str, *, everywhere: bool) -> Launch:
    name = "torchrun" if program.startswith("torch") else re.split(r"[.\s]", program)[0]
    nodes, per_node, total = _numbers(name, words)
    if name == "torchrun":
        nodes, per_node = (1 if each is None else each for each in (nodes, per_node))
    by_itself = name == "deepspeed" and ("--hostfile" in words or nodes is not None)
    if "--standalone" in words or not (everywhere or by_itself):
        nodes = 1  # on its other nodes a job runs only what srun starts there
    return Launch(" ".join(program.split()), nodes or None, per_node or None, total or None, by_node=True)


def _of_tasks(program: str, words: str, options: Mapping[str, str | None]) -> Launch:
    nodes, per_node, total = _numbers("srun" if program == "srun" else "mpirun", words)
    if per_node is None and total is None:
        per_node, total = literal(options.get("ntasks-per-node")), literal(options.get("ntasks"))
    if per_node:
        total = None
    return Launch(program, nodes or None, per_node or None, total or None)


def _numbers(name: str, words: str) -> tuple[int | None, int | None, int | None]:
    """Return the numbers that a launcher's options give: None if an option is not there, 0 if it is not literal."""
    found = []
    own = _PROGRAM.split(words, maxsplit=1)[0]
    for option in _NUMBERS[name]:
        given = re.search(rf"(?<!\S){option}(?:[= ]+|(?=\d))(\S+)", own) if option else None
        found.append(None if given is None else literal(given[1].removesuffix(":node")) or 0)
    return found[0], found[1], found[2]


def literal(text: str | None) -> int | None:
    """Return a number that is written out, and at least 1; None for any other text."""
    return int(text) if text and re.fullmatch("0*[1-9][0-9]*", text) and len(text) < 10 else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"
