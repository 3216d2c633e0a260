"""An elastic job's script: the user's own, with the driver as its interpreter.

`sbatch` copies the script when it is submitted. Rewritten, its first line runs the driver and its second line tells the
driver what it replaced; the driver removes both again, so line numbers in error messages are the user's.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from elastic.backends import DEFAULT, KINDS
from elastic.base.errors import UsageError

NO_CONTAINERS = (
    "this site has not said how containers are started: submit without container=, "
    "or ask its administrator to set [elastic] container"
)

_MARK = "#BFT "
_CONSTRAINT = re.compile(
    r"""^#SBATCH[ \t]+(?:-C[ \t]*|--constraint(?:=|[ \t]+))("[^"\n]*"|'[^'\n]*'|[^\s"'#]+)[ \t\r]*(?:#.*)?$""",
    re.MULTILINE,
)
_OPTION = re.compile(r"^#SBATCH\b.*--elastic\b.*$", re.MULTILINE)
_WORD = re.compile(r"""(?:[^\s\\"'#]|\\\S?|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""")
_QUOTED = re.compile(r"""\\(\S?)|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'""")


@dataclass(frozen=True)
class Header:
    """The content of the second line: the `--elastic` value, the pilots' partition and options, the script's path.

    `partition` is "" if any harvested one will do; `constraint` is the job's own option of that name.
    """

    elastic: str
    partition: str
    socket: str
    script: str
    interpreter: str
    pilot_options: tuple[str, ...] = ()
    pilot_mode: str = "salloc"
    constraint: str = ""


def elastic_option(source: str) -> str | None:
    """Return the value of the script's own `#SBATCH --elastic=...` line; the last one counts, as in Slurm."""
    values = [value for line in _OPTION.findall(_head(source)) if (value := _elastic(line)) is not None]
    return values[-1] if values else None


def words_of(line: str) -> list[str]:
    """Split an `#SBATCH` line into words as sbatch does, without the mark; raises UsageError for an open quote.

    Unlike a shell, sbatch removes a backslash before any letter, also between single quotes; a space ends a word even
    after a backslash; and # begins a comment wherever it is not quoted.
    """
    found, at, text = [], 0, line.removeprefix("#SBATCH").rstrip("\r\n")
    while True:
        at += len(text[at:]) - len(text[at:].lstrip())
        word = _WORD.match(text, at)
        if word is None:
            break
        found.append(_QUOTED.sub(_bare, word[0]))
        at = word.end()
    if text[at : at + 1] not in ("", "#"):
        raise UsageError(f"{line.strip()}: a quote is not closed")
    return found


def _bare(match: re.Match[str]) -> str:
    inside = match[2] if match[2] is not None else match[3]
    return match[1] if inside is None else re.sub(r"\\(.)", r"\1", inside)


def _elastic(line: str) -> str | None:
    """Return the value of --elastic if that is all that the line says."""
    words = words_of(line)
    if len(words) == 2 and words[0] == "--elastic":
        return words[1]
    return words[0].removeprefix("--elastic=") if len(words) == 1 and words[0].startswith("--elastic=") else None


def constraints(source: str) -> tuple[str, ...]:
    """Return the values of the script's own `#SBATCH --constraint=...` lines."""
    return tuple(value.strip("\"'") for value in _CONSTRAINT.findall(_head(source)))


def _head(source: str) -> str:
    """Return the lines in which sbatch looks for options: they end at the first line of code."""
    head = []
    for line in source.split("\n"):
        if line.strip() and not line.startswith("#"):
            break
        head.append(line)
    return "\n".join(head)


def interpreter_of(source: str, path: str, *, contained: bool = False) -> str:
    """Return the absolute path of the Python that the script's first line names, by default python3 for a .py file.

    Raises UsageError if there is none. For a `contained` script it is the path as the image has it: this host need not
    have it.
    """
    first = source.splitlines()[0] if source else ""
    if not first.startswith("#!") and not path.endswith(".py"):
        raise UsageError(f"{path}: the first line must name its Python, for example #!/usr/bin/env python3")
    try:
        words = shlex.split(first[2:]) if first.startswith("#!") else ["python3"]
    except ValueError:
        words = []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if not words or not re.match(r"(python|pypy)[\d.]*$", Path(words[0]).name):
        raise UsageError(f"{path}: an elastic job is a Python script; its first line is {first!r}")
    found = words[0] if contained else shutil.which(words[0])
    if found is None:
        raise UsageError(f"{path}: {words[0]} is not to be found; load its module or environment first")
    return found


def backend_of(source: str, path: str, asked: str | None = None) -> str:
    """Return the back-end of a script: the one that was `asked` for, else the first that recognises its source.

    Raises UsageError if the script trains with a library that the back-end does not support.
    """
    name = asked or next((kind.name for kind in KINDS.values() if kind.wants(source)), DEFAULT)
    refused = KINDS[name].refused
    imported = _imported(source) if refused else set()
    for module, unless in refused.items():
        if module in imported and not imported.intersection(unless):
            raise UsageError(
                f"{path} imports {module}, which backend={name} cannot train with: "
                "use torch, with horovod.torch or without Horovod"
            )
    return name


def _imported(source: str) -> set[str]:
    """Return the modules that a script imports anywhere, with their parents and the names that it takes from them.

    A script may be written for a newer Python than this one. If this one cannot parse it, only imports that stand on
    one line are found.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the user's string literals
        whole = _parsed(source)
        lines = [line.strip() for line in source.splitlines()] if whole is None else []
        trees = [whole, *(_parsed(line) for line in lines if line.startswith(("import ", "from ")))]
    found: set[str] = set()
    for node in (node for tree in trees if tree is not None for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {".".join(name.split(".")[:parts]) for name in found for parts in range(1, name.count(".") + 2)}


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def rewrite(source: str, driver: str, header: Header) -> str:
    """Return the script to submit: the driver's line, the header, and the user's lines without their `#!` line.

    The user's `#SBATCH --elastic` lines become plain comments: sbatch without the plug-in refuses them. So do the
    `--constraint` lines: they are about the pool's nodes, and the driver runs on another.
    """
    first, _, rest = source.partition("\n") if source.startswith("#!") else (None, "", source)
    head = _head(rest)
    hidden = _OPTION.sub(lambda match: match[0] if _elastic(match[0]) is None else "#" + match[0], head)
    shown = _CONSTRAINT.sub(lambda match: "#" + match[0], hidden)
    rest = shown + rest[len(head) :]
    return f"#!{driver}\n{_MARK}{json.dumps({**asdict(header), 'first': first})}\n{rest}"


def restore(text: str) -> tuple[Header, str]:
    """Return the header and the user's script from what `rewrite` made; raises UsageError if it has another form."""
    lines = text.split("\n", 2)
    try:
        mark, fields = lines[1][: len(_MARK)], json.loads(lines[1][len(_MARK) :])
        first = fields.pop("first")
        header = Header(**{**fields, "pilot_options": tuple(fields["pilot_options"])})
        texts = (*header.pilot_options, *(value for value in vars(header).values() if not isinstance(value, tuple)))
        if mark == _MARK and all(isinstance(text, str) for text in texts) and isinstance(first, str | None):
            return header, lines[2] if first is None else f"{first}\n{lines[2]}"
    except (IndexError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        pass
    raise UsageError("this is not an elastic job's script; submit it with: bft sbatch --elastic=MIN-MAX SCRIPT")
