"""A parser for sbatch command lines: options, their values, and the script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bftd.base.errors import UsageError
from bftd.protocol.bounds import SIZES_MOST

# sbatch's options that take no value. Every other option without "=" takes the next word (man sbatch).
_FLAGS = {
    "consolidate-segments", "contiguous", "exclusive", "external", "get-user-env", "help", "hold", "ignore-pbs",
    "kill-on-invalid-dep", "nice", "no-kill", "no-requeue", "oom-kill-step", "overcommit", "oversubscribe", "parsable",
    "propagate", "quiet", "reboot", "requeue", "resv-ports", "spread-job", "spread-segments", "stepmgr", "test-only",
    "usage", "use-min-nodes", "verbose", "version", "wait",
}  # fmt: skip
_SHORT_FLAGS = {
    "h": "help", "H": "hold", "O": "overcommit", "Q": "quiet", "s": "oversubscribe", "v": "verbose",
    "V": "version", "W": "wait",
}  # fmt: skip
_LONG_OF_SHORT = {
    "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "w": "nodelist", "x": "exclude", "C": "constraint",
    "a": "array", "G": "gpus", "p": "partition", "J": "job-name", "B": "extra-node-info", "L": "licenses",
    "t": "time", "A": "account", "q": "qos", "k": "no-kill",
}  # fmt: skip

# All long options of sbatch (from sbatch --help, and some that it omits): sbatch accepts unique prefixes.
_LONG = sorted(_FLAGS | set(_LONG_OF_SHORT.values()) | {
    "account", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters", "comment", "container", "container-id",
    "container-type", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "deadline", "delay-boot",
    "dependency", "distribution", "error", "export", "export-file", "extra", "gid", "gpu-bind", "gpu-freq",
    "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input", "mail-type",
    "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mem-update", "mincpus", "network",
    "nodefile", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "open-mode", "output",
    "power", "prefer", "priority", "profile", "qos", "reservation", "resources", "segment", "signal",
    "sockets-per-node", "switches", "tasks-per-node", "thread-spec", "threads-per-core", "time", "time-min", "tmp",
    "tres-bind", "tres-per-task", "uid", "wait-all-nodes", "wckey", "wrap",
})  # fmt: skip
_FOREIGN = ("#PBS", "#BSUB")
_SAME = {"tasks-per-node": "ntasks-per-node"}
_NODES = re.compile(r"([0-9]{1,9})([kKmM]?)")
_TIMES = {"": 1, "k": 2**10, "m": 2**20}

# Options that determine a job's number of nodes and which: for elastic jobs the daemon decides that.
_DECIDED = {
    "ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "cpus-per-task",
    "cpus-per-gpu", "nodelist", "nodefile", "exclude", "array", "gpus", "gpus-per-node", "gpus-per-task",
    "gpus-per-socket", "tres-per-task", "gres", "mem", "mem-per-cpu", "mem-per-gpu", "exclusive", "contiguous",
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option: its long name, its value (None for a flag) and its words on the command line."""

    name: str
    value: str | None
    words: tuple[str, ...]


@dataclass(frozen=True)
class CommandLine:
    """A parsed sbatch command line; `script` is None if it names no script."""

    options: tuple[Option, ...]
    script: str | None
    arguments: tuple[str, ...]

    def value(self, name: str) -> str | None:
        """Return the value of the last option of that name."""
        return next((option.value for option in reversed(self.options) if option.name == name), None)

    def words(self, *without: str) -> list[str]:
        """Return the words of all options except those in `without`."""
        return [word for option in self.options if option.name not in without for word in option.words]


def parse(words: Sequence[str]) -> CommandLine:
    """Parse a command line; raises UsageError if a value is missing."""
    options: list[Option] = []
    rest = iter(enumerate(words))
    for index, word in rest:
        if word == "--":
            return CommandLine(tuple(options), *_script(words[index + 1 :]))
        if not word.startswith("-") or word == "-":
            return CommandLine(tuple(options), *_script(words[index:]))
        options.extend(_options(word, rest))
    return CommandLine(tuple(options), None, ())


def of_script(source: str) -> tuple[Option, ...]:
    """Return the options of a script's `#SBATCH` lines, up to its first line of code."""
    from elastic.options.job_script import words_of

    return parse([word for line in _header(source) if line.startswith("#SBATCH") for word in words_of(line)]).options


def foreign(source: str) -> str:
    """Return the prefixes of other systems' directives (#PBS, #BSUB) found in a script; "" if none.

    sbatch obeys these directives too.
    """
    return " and ".join(mark for mark in _FOREIGN if any(line.startswith(mark) for line in _header(source)))


def refuse_decided(options: Sequence[Option], where: str) -> None:
    """Raise UsageError for an option that an elastic job cannot have."""
    for option in options:
        if option.name == "wrap":
            raise UsageError("--wrap: an elastic job is a Python script: bft sbatch --elastic=MIN-MAX SCRIPT [ARG...]")
        if option.name in _DECIDED:
            raise decided(option, where)


def decided(option: Option, where: str) -> UsageError:
    """Return the error for an option that --elastic rules out."""
    return UsageError(f"{where}: {' '.join(option.words)}: --elastic says how many nodes a job gets; leave it out")


def elastic_of(nodes: str) -> str:
    """Return the value of --elastic that asks for what sbatch's `--nodes` does; raises UsageError.

    A single number is MIN and MAX. A list of sizes, such as 1,2,4 or 1-15:4 for every fourth, is `sizes=`.
    """
    if "," not in nodes and ":" not in nodes:
        return "-".join(str(_number(end, nodes)) for end in nodes.split("-", 1))
    listed = sorted({size for part in nodes.split(",") for size in _sizes(part, nodes)})
    if len(listed) > SIZES_MOST:
        raise UsageError(f"--nodes={nodes}: more than {SIZES_MOST} sizes; give a range, for example --nodes=1-8")
    ends = f"{listed[0]}-{listed[-1]}"
    if len(listed) == listed[-1] - listed[0] + 1:
        return ends
    return f"{ends},sizes={':'.join(map(str, listed))}"


def _sizes(part: str, nodes: str) -> range:
    """Return the sizes in one part of a list: 4, 1-4 or 1-15:4."""
    ends, colon, step = part.partition(":")
    low, dash, high = ends.partition("-")
    first = _number(low, nodes)
    last = _number(high, nodes) if dash else first
    every = _number(step, nodes) if colon else 1
    found = range(first, last + 1, max(1, every))
    if not found or not every or (colon and not dash) or len(found) > SIZES_MOST:
        raise _no_nodes(nodes)
    return found


def _number(text: str, nodes: str) -> int:
    match = _NODES.fullmatch(text)
    if match is None:
        raise _no_nodes(nodes)
    return int(match[1]) * _TIMES[match[2].lower()]


def _no_nodes(nodes: str) -> UsageError:
    return UsageError(f"--nodes={nodes}: give MIN-MAX, for example --nodes=1-8, or a list of sizes such as 1,2,4,8")


def _header(source: str) -> Iterator[str]:
    """Yield the lines that sbatch searches for options: those before the first line of code.

    Only a line feed ends a line; a form feed does not.
    """
    for line in source.split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield line


def _options(word: str, rest: Iterator[tuple[int, str]]) -> Iterator[Option]:
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        name = _whole(name)
        if equals or name in _FLAGS:
            yield Option(name, value if equals else None, (word,))
            return
        following = _next(word, rest)
        yield Option(name, following, (word, following))
        return
    letters = word[1:]
    while letters[:1] in _SHORT_FLAGS:  # flags may precede an option with a value, as in -Hpgpu
        yield Option(_SHORT_FLAGS[letters[0]], None, (f"-{letters[0]}",))
        letters = letters[1:]
    if not letters:
        return
    name, value = _LONG_OF_SHORT.get(letters[0], letters[0]), letters[1:]
    if name == "no-kill":  # its value is never a word of its own
        yield Option(name, value or None, (f"-{letters}",))
    elif value:
        yield Option(name, value, (f"-{letters}",))
    else:
        following = _next(word, rest)
        yield Option(name, following, (f"-{letters}", following))


def _whole(name: str) -> str:
    """Return the full name of a long option, which may be abbreviated to a unique prefix."""
    found = [name] if name in _LONG else [each for each in _LONG if each.startswith(name)]
    whole = found[0] if len(found) == 1 else name
    return _SAME.get(whole, whole)


def _next(word: str, rest: Iterator[tuple[int, str]]) -> str:
    try:
        return next(rest)[1]
    except StopIteration:
        raise UsageError(f"{word}: a value is missing") from None


def _script(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    return (words[0], tuple(words[1:])) if words else (None, ())
