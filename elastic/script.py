"""An elastic job's script: the user's own, with the driver as its interpreter.

`sbatch` copies the script when it is submitted. Rewritten, its first line runs the driver and its second line tells
the driver what it replaced; the driver takes both off again, so line numbers in error messages are the user's.
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
from elastic.errors import UsageError

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
    """What the second line carries: the `--elastic` value, the pilots' partition and options, the script's place.

    `partition` is "" where any harvested one will do; `constraint` is the job's own option of that name.
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
    """The value of the script's own `#SBATCH --elastic=...` line; the last one counts, as with Slurm's options."""
    values = [value for line in _OPTION.findall(_head(source)) if (value := _elastic(line)) is not None]
    return values[-1] if values else None


def words_of(line: str) -> list[str]:
    """The words of an `#SBATCH` line behind that mark, as sbatch reads them; raises UsageError for an open quote.

    Unlike a shell it takes a backslash away before any letter, also between single quotes, a space ends a word in
    spite of one, and # begins a comment wherever it is bare.
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
    """The value of --elastic where it is all that the line says."""
    words = words_of(line)
    if len(words) == 2 and words[0] == "--elastic":
        return words[1]
    return words[0].removeprefix("--elastic=") if len(words) == 1 and words[0].startswith("--elastic=") else None


def constraints(source: str) -> tuple[str, ...]:
    """The values of the script's own `#SBATCH --constraint=...` lines."""
    return tuple(value.strip("\"'") for value in _CONSTRAINT.findall(_head(source)))


def _head(source: str) -> str:
    """The lines in which sbatch looks for options: they end at the first line of code."""
    head = []
    for line in source.split("\n"):
        if line.strip() and not line.startswith("#"):
            break
        head.append(line)
    return "\n".join(head)


def interpreter_of(source: str, path: str, *, contained: bool = False) -> str:
    """The Python that the script's first line asks for, as an absolute path; raises UsageError when there is none.

    Of a `contained` script it is as the image will find it: this host need not have it.
    """
    first = source.splitlines()[0] if source else ""
    if not first.startswith("#!"):
        raise UsageError(f"{path}: the first line must name its Python, for example #!/usr/bin/env python3")
    try:
        words = shlex.split(first[2:])
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
    """The back-end of a script: the one that was `asked` for, else the first that finds itself in its source.

    Raises UsageError where the script trains with a library that the back-end does not carry.
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
    """The modules that a script imports anywhere, with their parents and the names that it takes from them.

    Of a script that this Python cannot parse, which may be older than the user's, the imports that stand on one line.
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
    """The script that is submitted: the driver's line, the header, and the user's lines from the second one on.

    The user's `#SBATCH --elastic` lines become plain comments: an sbatch without the plug-in refuses them. So do those
    of `--constraint`: they are about the pool's nodes, and the driver runs on another.
    """
    first, _, rest = source.partition("\n")
    head = _head(rest)
    hidden = _OPTION.sub(lambda match: match[0] if _elastic(match[0]) is None else "#" + match[0], head)
    shown = _CONSTRAINT.sub(lambda match: "#" + match[0], hidden)
    rest = shown + rest[len(head) :]
    return f"#!{driver}\n{_MARK}{json.dumps({**asdict(header), 'first': first})}\n{rest}"


def restore(text: str) -> tuple[Header, str]:
    """The header and the user's script from what `rewrite` made; raises UsageError when it is not of that form."""
    lines = text.split("\n", 2)
    try:
        mark, fields = lines[1][: len(_MARK)], json.loads(lines[1][len(_MARK) :])
        first = fields.pop("first")
        header = Header(**{**fields, "pilot_options": tuple(fields["pilot_options"])})
        if mark == _MARK:
            return header, f"{first}\n{lines[2]}"
    except (IndexError, ValueError, AttributeError, KeyError, TypeError):
        pass
    raise UsageError("this is not an elastic job's script; submit it with: bft sbatch --elastic=MIN-MAX SCRIPT")
