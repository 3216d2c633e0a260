"""Writes the manual pages, the shells' completions and the configuration from the program's own definitions.

python tools/package/manual.py FOLDER makes man/{bft.1,bftd.8,...}, completion/bft.{bash,zsh,fish}, bftd.toml.
The pages' text is click's help and the configuration's definition; only what neither knows stands here.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from bftd import __version__, config_file
from bftd.cli.completion import install
from bftd.cli.main import bft
from bftd.config import keys
from bftd.daemon import process

_WIDTH = 78
_SHELLS = ("bash", "zsh", "fish")
_EXIT_STATUS = (
    ("0", "All went well."),
    ("1", "It failed; one line on standard error says why."),
    ("2", "It was called wrongly, or the configuration is wrong."),
)
_CONFIG_VARIABLE = (config_file.PATH_VARIABLE, f"The configuration to read instead of {config_file.DEFAULT_PATH}.")


class Page:
    """One manual page in the man(7) macros."""

    def __init__(self, name: str, section: int, purpose: str) -> None:
        seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
        date = time.strftime("%Y-%m-%d", time.gmtime(seconds))
        self._lines = [
            f'.TH "{name.upper()}" "{section}" "{date}" "bftd {__version__}" "bftd manual"',
            ".SH NAME",
            f"{name} \\- {_escaped(purpose)}",
        ]

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._lines.append(f".SH {text.upper()}")

    def subheading(self, text: str) -> None:
        """Begin a part of a section."""
        self._lines.append(f'.SS "{_escaped(text)}"')

    def text(self, text: str) -> None:
        """Paragraphs, which an empty line divides; what is in `backquotes` is set bold."""
        for paragraph in re.split(r"\n\s*\n", text.replace("\b", "").strip()):
            self._paragraph()
            self._lines += _filled(paragraph)

    def usage(self, words: str, pieces: Iterable[str]) -> None:
        """One line of a synopsis: the command in bold and what follows it."""
        self._paragraph()
        self._lines.append(f"\\fB{_escaped(words)}\\fR {_escaped(' '.join(pieces))}".rstrip())

    def items(self, items: Iterable[tuple[str, str]]) -> None:
        """Terms, each with its explanation."""
        for term, text in items:
            self._lines += [".TP", f"\\fB{_escaped(term)}\\fR", *_filled(text)]

    def example(self, text: str) -> None:
        """Lines that are kept as they are."""
        self._lines += [".RS 4", ".nf", *(_guarded(_escaped(line)) for line in text.splitlines()), ".fi", ".RE"]

    def see_also(self, *pages: str) -> None:
        """The last section: other pages, as name(section)."""
        self.heading("see also")
        names = (re.sub(r"(.*)\((\d)\)", r"\\fB\1\\fR(\2)", _escaped(page)) for page in pages)
        self._lines.append(", ".join(names))

    def _paragraph(self) -> None:
        if not self._lines[-1].startswith(".S"):  # a heading begins one itself
            self._lines.append(".PP")

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def _guarded(line: str) -> str:
    """A line of text that begins like a request is none."""
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _filled(text: str) -> list[str]:
    """Lines of running text; what is in `backquotes` is set bold."""
    bold = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", _escaped(" ".join(text.split())))
    lines = textwrap.wrap(bold, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [_guarded(line) for line in lines]


def _walk(context: click.Context) -> Iterator[click.Context]:
    """Every command below a group that can be called, in the order of the help."""
    group = context.command
    if not isinstance(group, click.Group):
        yield context
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield from _walk(click.Context(command, parent=context, info_name=name))


def _options(context: click.Context) -> list[tuple[str, str]]:
    """What there is to say of a command's parameters; that --help is one of them, the page says once."""
    records = (parameter.get_help_record(context) for parameter in context.command.params)
    return [record for record in records if record is not None and record[1]]


def bft_page() -> Page:
    """bft(1): every command with all its options."""
    page = Page("bft", 1, "train neural networks elastically on the idle nodes of a Slurm cluster")
    page.heading("synopsis")
    page.usage("bft", ["COMMAND", "[OPTION...]", "[ARGUMENT...]"])
    page.heading("description")
    page.text(
        "`bft` submits elastic training jobs, shows what the daemon `bftd` makes of the idle nodes, and tells a site "
        "what it would gain. An elastic job is an ordinary batch job: its first line names `bft-driver`, the program "
        "that asks the daemon for nodes and runs the training on them for as long as they are idle."
    )
    page.text("Every command has `--help`; `bft --version` prints the version.")
    page.heading("commands")
    for context in _walk(click.Context(bft, info_name="bft")):
        page.subheading(context.command_path)
        page.usage(context.command_path, context.command.collect_usage_pieces(context))
        page.text(context.command.help or "")
        page.items(_options(context))
    page.heading("environment")
    page.items(
        [
            _CONFIG_VARIABLE,
            ("BFTD_SOCKET", "Where the daemon is, a socket or host:port, whatever the configuration says."),
            ("BFTD_MUNGE_SOCKET", "The socket of munged, where it is not munge's own default."),
        ]
    )
    page.heading("files")
    page.items([(str(config_file.DEFAULT_PATH), "The configuration, which says where the daemon is.")])
    page.heading("exit status")
    page.items([*_EXIT_STATUS, ("130", "It was interrupted.")])
    page.see_also("bftd(8)", "bftd.toml(5)", "sbatch(1)")
    return page


def bftd_page() -> Page:
    """bftd(8): the daemon."""
    context = click.Context(process._command, info_name="bftd")
    page = Page("bftd", 8, "harvest the idle nodes of a Slurm cluster for elastic training jobs")
    page.heading("synopsis")
    page.usage("bftd", process._command.collect_usage_pieces(context))
    page.heading("description")
    page.text(
        "`bftd` reads Slurm once a second, decides which trainer may use which idle node, and tells the trainers' "
        "drivers. It runs as an ordinary system user and starts no user's code; pilots are jobs of the users "
        "themselves. When it stops, training goes on and nothing grows until it is back."
    )
    page.heading("options")
    page.items([*_options(context), ("--help", "Show a summary and exit.")])
    page.heading("signals")
    page.items(
        [
            ("SIGHUP", "Read the configuration again; a file with a fault changes nothing."),
            ("SIGTERM, SIGINT", "Stop. Pilots that run go on until their driver ends them."),
        ]
    )
    page.heading("environment")
    page.items(
        [
            _CONFIG_VARIABLE,
            ("NOTIFY_SOCKET", "Where systemd is told of start, reload and stop, and that the daemon is alive."),
            ("JOURNAL_STREAM", "Set by systemd: lines then begin with their priority, as in sd-daemon(3)."),
        ]
    )
    page.heading("files")
    page.items(
        [
            (str(config_file.DEFAULT_PATH), "The configuration: bftd.toml(5)."),
            (keys.Config().api.socket, "The socket of drivers and commands on this host."),
            (
                keys.Config().ledger.path,
                "The ledger: decisions and progress of a month, and every node-second.",
            ),
        ]
    )
    page.heading("exit status")
    page.items([*_EXIT_STATUS, ("3", "Another bftd of this host harvests the partition, or has the ledger.")])
    page.see_also("bft(1)", "bftd.toml(5)", "systemctl(1)", "slurm.conf(5)")
    return page


def toml_page() -> Page:
    """bftd.toml(5): every key."""
    page = Page("bftd.toml", 5, "configuration of bftd")
    page.heading("description")
    page.text(
        f"`{config_file.DEFAULT_PATH}` is a TOML file. Every key has a default; an unknown one is an error. `bftd "
        "--check-config` says what is wrong with the file, `bftd --print-config` prints all of it, and `systemctl "
        "reload bftd` makes the daemon read it again: changes of [api], [ledger] and [slurm] need a restart."
    )
    section = ""
    for key in keys.reference():
        if key.section != section:
            section = key.section
            page.heading(f"[{section}]")
        unit = f" ({key.unit})" if key.unit else ""
        example = "" if key.example == key.default else f" Example: {json.dumps(key.example)}."
        page.items([(key.name, f"{key.doc}{unit} Type {key.type}, default {json.dumps(key.default)}.{example}")])
    page.heading("example")
    page.example('[slurm]\npartition = "elastic"\n\n[decide]\nobjective = "efficiency"\npj_max = 20')
    page.see_also("bftd(8)", "bft(1)")
    return page


def completion(shell: str) -> str:
    """The script that makes a shell complete bft's commands and options."""
    install()
    found = get_completion_class(shell)
    assert found is not None
    return found(bft, {}, "bft", "_BFT_COMPLETE").source()


def write(folder: Path) -> None:
    """Write everything below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"bft.1": bft_page(), "bftd.8": bftd_page(), "bftd.toml.5": toml_page(), "bft-driver.1": ".so man1/bft.1\n"}
    scripts = {f"bft.{shell}": completion(shell) for shell in _SHELLS}
    (folder / "bftd.toml").write_text(config_file.to_toml(keys.Config()))
    for kind, texts in (("man", pages), ("completion", scripts)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / kind / name).write_text(str(text))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: manual.py FOLDER")
    write(Path(sys.argv[1]))
