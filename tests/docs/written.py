"""The commands that the documentation shows: what stands in fenced blocks, and in backquotes within a sentence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")), *(ROOT / "docs").rglob("*.md")]
)

COMMAND_TAGS = ("console", "sh", "bash", "shell")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- run: ([a-z-]+) -->\n$")
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_HEREDOC = re.compile(r"<<-?\s*'?\"?(\w+)")


@dataclass(frozen=True)
class Line:
    """One command line, continued ones joined, with the output that the page shows for it."""

    at: int
    text: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """A fenced block: `tag` is its language, `run` the name of the session that a test runs it in, or ""."""

    page: str
    at: int
    tag: str
    run: str
    prompted: bool
    lines: tuple[Line, ...]

    @property
    def where(self) -> str:
        """As editors and people read it."""
        return f"{self.page}:{self.at}"


def name(page: Path) -> str:
    """The page's path below the root."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page; what has `$ ` in front is a command there, and all else what it prints."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent, tag, body = match.groups()
        rows = [row.removeprefix(indent) for row in body.splitlines()]
        at = text.count("\n", 0, match.start()) + 2
        mark = _MARK.search(text[: match.start()])
        prompted = any(row.startswith("$ ") for row in rows)
        lines = tuple(_prompted(rows, at) if prompted else _plain(rows, at))
        found.append(Block(name(page), at, tag, mark[1] if mark else "", prompted, lines))
    return found


def inline(page: Path) -> Iterator[tuple[str, str]]:
    """What stands in backquotes outside of fenced blocks, on one line, and where."""
    text = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))
    for match in _INLINE.finditer(text):
        yield f"{name(page)}:{text.count(chr(10), 0, match.start()) + 1}", " ".join(match[1].split())


def _prompted(rows: list[str], at: int) -> Iterator[Line]:
    numbered = list(enumerate(rows, at))
    while numbered:
        number, row = numbered.pop(0)
        if not row.startswith("$ "):
            continue
        text = _whole(row[2:], numbered)
        shown = []
        while numbered and not numbered[0][1].startswith("$ "):
            shown.append(numbered.pop(0)[1])
        yield Line(number, text, tuple(shown))


def _plain(rows: list[str], at: int) -> Iterator[Line]:
    numbered = list(enumerate(rows, at))
    while numbered:
        number, row = numbered.pop(0)
        if text := _whole(row, numbered).strip():
            yield Line(number, text)


def _whole(text: str, rest: list[tuple[int, str]]) -> str:
    """A command line with what continues it, taken from `rest`: after a backslash or a pipe, or a heredoc."""
    while text.endswith(("\\", "|", "&&")) and rest:
        text = text.removesuffix("\\").rstrip() + " " + rest.pop(0)[1].strip()
    heredoc = _HEREDOC.search(text)
    while heredoc and rest and text.splitlines()[-1].strip() != heredoc[1]:
        text += f"\n{rest.pop(0)[1]}"
    return text


def words(line: str) -> list[list[str]]:
    """The simple commands of a shell line, each in words, without comments, redirections and assignments in front.

    Raises ValueError where quotes are not closed.
    """
    if heredoc := _HEREDOC.search(line):  # what follows is no command
        line = re.sub(rf"\n.*^{heredoc[1]}$", "", line, flags=re.MULTILINE | re.DOTALL)
    inner = re.findall(r"\$\(([^()]*)\)", line)
    line = re.sub(r"\$\([^()]*\)", "SUBSTITUTED", line)
    lexer = shlex.shlex(re.sub(r"(?<=\s)\d(?=[<>])", "", line), posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    skip = False
    for token in lexer:
        if skip:
            skip = False
        elif set(token) <= set("<>&") and set(token) & set("<>"):
            skip = True
        elif set(token) <= set("|&;()"):
            commands.append([])
        elif commands[-1] or not re.match(r"[A-Za-z_]\w*=", token):
            commands[-1].append(token)
    for text in inner:
        commands += words(text)
    return [command for command in commands if command]
