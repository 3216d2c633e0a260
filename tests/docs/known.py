"""What the documentation may tell its readers to type, and what of it is checked."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from bftd.cli.jobs import sbatch_options
from bftd.cli.main import bft
from bftd.daemon import process
from elastic.options.elastic_option import ElasticSpec
from tests.docs.written import ROOT

Problem = str | None

# Commands of others. Their options are theirs: a page is read against their manual, not by a test.
OTHERS = {
    "Slurm": "sacct sacctmgr salloc sbatch scancel scontrol sdiag sinfo slurmd slurmctld squeue srun",
    "the system": "apt-get apt dnf systemctl systemd-analyze systemd-sysusers systemd-tmpfiles sysctl journalctl"
    " findmnt install ln openssl ssh sudo runuser setsid flock rm mkdir cp chmod chown crontab",
    "the shell": "export eval cd kill . source for do done if then fi [ while continue read echo printf true cat grep"
    " sed head tail sort date wait sleep less column watch",
    "tools that a page shows for their own sake": "pip torchrun horovodrun pytest nvidia-smi unzip curl jq socat "
    "promtool prometheus grafana-server mail",
}
# Those that run another command, which is checked then.
RUNNERS = {"sudo", "runuser", "setsid", "ssh", "watch", "exec", "time", "if", "then", "else", "do", "while", "!"}
_FILE = re.compile(r"(?:benchmarks|docs|examples|systemd|tests|tools)/[\w./-]*\w")
_OTHER = {word for words in OTHERS.values() for word in words.split()}

# Blocks without commands that do not say by a language that they have none, by how they begin.
NOT_COMMANDS = {
    r"\w[\w-]*: ?\S*$": "YAML",
    r"\[\w+\]$": "bftd.toml, or a unit",
    r"[A-Z]\w+=\S*": "slurm.conf",
    r"# /etc/bftd/bftd.toml": "bftd.toml",
    r"optional /usr/local": "plugstack.conf",
    r"time_s,node,idle": "a file's first lines",
    r'\{"': "JSON",
    r"[a-z]\w+[({]|bftd_\w+ |(sum|max|min) by ": "an expression of Prometheus",
    r"slurmctld ──snapshot": "the picture of the parts",
    r"sum over stages": "a formula",
    r"(BFTD|INFO|bftd|bftd:|bft:|bftd runs in) (?!-)": "what the daemon, a driver or a command prints",
    r"train-d waits|samples/s by CPUs": "what a command prints",
}

# Words in backquotes that begin as a command does and are none.
SENTENCES = {
    "bft TRAINER LEASE @a1b2c3d4": "a pilot's comment",
    "bftd cannot write its ledger": "what bft status says",
    "bftd is left out": "what slurmctld's log says",
}

_NOT_COMMANDS = re.compile("|".join(NOT_COMMANDS))
_PLACEHOLDER = re.compile(r"^[A-Z][A-Z_]*$|\.\.\.|^\$|SUBSTITUTED|^<.*>$")
_MEMO: dict[str, Problem] = {}


def is_no_command(line: str) -> bool:
    """Whether a block that begins with this line has no commands."""
    return _NOT_COMMANDS.match(line) is not None


def is_command(word: str) -> bool:
    """Whether a line that begins so is one of those that are known here."""
    return word in _CHECKS or word in _OTHER


def problem(words: Sequence[str], whole: bool) -> Problem:
    """What is wrong with a simple command, or None; `whole`: nothing that it requires may be left out."""
    words = bare(words)
    key = f"{whole} {shlex.join(words)}"
    if key not in _MEMO and (gone := [word for word in words if _FILE.fullmatch(word) and not (ROOT / word).exists()]):
        _MEMO[key] = f"there is no {' '.join(gone)}"
    elif key not in _MEMO:
        check = _CHECKS.get(Path(words[0]).name)
        known = check is not None or words[0] in _OTHER or words[0].startswith("/")  # a script that the page shows
        _MEMO[key] = check(words, whole) if check else None if known else f"{words[0]} is in no table of this test"
    return _MEMO[key]


def bare(words: Sequence[str]) -> Sequence[str]:
    """The command behind one that runs it, such as sudo's; a command of the shell's own structure has none before."""
    if words[0] not in RUNNERS:
        return words
    found = (
        at
        for at, word in enumerate(words[1:], 1)
        if is_command(Path(word).name) and word not in RUNNERS and words[at - 1] not in ("-u", "-g", "-n")  # a user's
    )
    return words[next(found, 0) :]


def from_inline(text: str) -> list[list[str]]:
    """The words of a command in a sentence: alternatives one after the other, what is optional as if it were given."""
    text = text.replace("\\|", "|")
    text = re.sub(r"(--[\w-]+)\|(?=--)", r"\1 ", text)
    text = re.sub(r"(\w)\|[\w|-]+", r"\1", text)
    text = re.sub(r"\[((?:-|[A-Z])[^\]]*)\]", r"\1", text)
    words = shlex.split(text.replace("'", '"') if text.count("'") % 2 else text)
    for stop in ("|", ">", "<", "&&"):
        if stop in words:
            words = words[: words.index(stop)]
    return [words] if words else []


def _click(root: click.Command) -> Callable[[Sequence[str], bool], Problem]:
    def check(words: Sequence[str], whole: bool) -> Problem:
        command, context = root, click.Context(root, info_name=words[0], **root.context_settings)
        rest = list(words[1:])
        while isinstance(command, click.Group):
            if not rest or rest[0] in ("--help", "--version"):
                return None
            name = rest.pop(0)
            if _PLACEHOLDER.search(name):
                return None
            found = command.get_command(context, name)
            if found is None:
                return f"{context.command_path} has no command {name}"
            command = found
            context = click.Context(found, context, name, **found.context_settings)
        if command.name == "sbatch":
            return _sbatch(rest, whole)
        return _options(command, context, rest, whole)

    return check


def _options(command: click.Command, context: click.Context, rest: list[str], whole: bool) -> Problem:
    given = [word for word in rest if word != "..."]
    try:
        found, left, _ = command.make_parser(context).parse_args(given)
    except click.BadOptionUsage as error:
        return None if not whole and "requires an argument" in str(error) else error.format_message()
    except click.UsageError as error:
        return error.format_message()
    if left and not any(map(_PLACEHOLDER.search, rest)):
        return f"{context.command_path} takes no {' '.join(left)}"
    for parameter in command.get_params(context):
        value = found.get(parameter.name or "")
        if not isinstance(value, str | tuple | list) or not value:  # a flag, or nothing
            if (
                not isinstance(value, bool | int)
                and whole
                and parameter.required
                and "--help" not in rest
                and not any(map(_PLACEHOLDER.search, rest))
            ):
                return f"{context.command_path} lacks {parameter.human_readable_name}"
            continue
        if isinstance(parameter.type, click.Path | click.File) or _held_back(value):
            continue
        try:
            parameter.type_cast_value(context, value)
        except click.UsageError as error:
            return f"{parameter.human_readable_name}: {error.format_message()}"
        if parameter.name == "text" and command.name == "run":
            return _elastic(str(value))
    return None


def _held_back(value: object) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(part, str) and _PLACEHOLDER.search(part) for part in values)


def _sbatch(words: Sequence[str], whole: bool) -> Problem:
    try:
        line = sbatch_options.parse([word for word in words if word != "..."])
    except Exception as error:
        return str(error) if whole else None
    known = {"elastic", "auto-gpus", *sbatch_options._LONG}
    unknown = [each.words[0] for each in line.options if each.words[0].startswith("--") and each.name not in known]
    if unknown:
        return f"sbatch has no {' '.join(unknown)}"
    text = line.value("elastic")
    return (_elastic(text) if text else None) or _script(line.script, line.arguments)


def _script(path: str | None, arguments: Sequence[str]) -> Problem:
    """What is wrong with the options of one of our examples: it has each of them in quotes."""
    if path is None or not path.startswith("examples/") or _PLACEHOLDER.search(path):
        return None
    source = (ROOT / path).read_text()
    own = list(itertools.takewhile(lambda word: word != "--", arguments))
    options = [word.partition("=")[0].strip("[],") for word in own if word.startswith("--")]
    missing = [option for option in options if f'"{option}"' not in source]
    return f"{path} has no {' '.join(missing)}" if missing else None


def _slurm_sbatch(words: Sequence[str], whole: bool) -> Problem:
    texts = [word.partition("=")[2] for word in words if word.startswith("--elastic=")]
    refused = words[0] == "salloc" or "4-1" in texts  # shown with the refusal that follows
    if words[0] == "sbatch" and texts and not refused and (found := _sbatch(words[1:], whole)):
        return found
    return next(filter(None, map(_elastic, texts)), None) if not refused else None


def _elastic(text: str) -> Problem:
    if not text or re.search(r"MIN|MAX|\bB\b|\.\.\.", text):
        return None
    text = re.sub(r"=(?:JOBID|JOB|PATH|IMAGE|REGEX|N|S|W)\b", lambda match: "=" + _VALUES[match[0][1:]], text)
    try:
        ElasticSpec.parse(text)
    except Exception as error:
        return f"--elastic={text}: {error}"
    return None


_VALUES = {"JOBID": "1", "JOB": "1", "PATH": "/a", "IMAGE": "/i", "REGEX": "(?P<step>[0-9]+)"} | dict.fromkeys(
    "NSW", "9"
)


def _python(words: Sequence[str], whole: bool) -> Problem:
    if len(words) < 3 or words[1] != "-m":
        at = next((at for at, word in enumerate(words) if word.endswith(".py") and "/" in word), None)
        return None if at is None else _script(words[at], words[at + 1 :])
    module = words[2]
    if module.partition(".")[0] not in ("benchmarks", "tools", "examples", "bftd", "elastic", "sizing"):
        return None
    if importlib.util.find_spec(module) is None:
        return f"there is no module {module}"
    texts = _sources(module)
    options = [word.partition("=")[0].strip("[],") for word in words[3:]]
    missing = [option for option in options if option.startswith("--") and f'"{option}"' not in texts]
    return f"{module} has no {' '.join(missing)}" if missing else None


def _sources(module: str) -> str:
    """The module's text, and that of those next to it that it imports."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    origin = Path(spec.origin)
    paths = [origin.with_name("__main__.py")] if origin.name == "__init__.py" else []
    text = "".join(path.read_text() for path in [origin, *paths] if path.exists())
    for name in set(re.findall(r"^(?:from|import) (benchmarks[\w.]*)", text, re.MULTILINE)):
        if (near := ROOT / f"{name.replace('.', '/')}.py").exists():
            text += near.read_text()
    return text


def _make(words: Sequence[str], whole: bool) -> Problem:
    targets = set(re.findall(r"^([a-z][\w -]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {name for row in targets for name in row.split()}
    asked = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
    missing = [word for word in asked if word not in known]
    return f"the Makefile has no {' '.join(missing)}" if missing else None


_CHECKS: dict[str, Callable[[Sequence[str], bool], Problem]] = {
    "bft": _click(bft),
    "bftd": _click(process._command),
    "bft-driver": lambda words, whole: None,
    "python": _python,
    "python3": _python,
    "make": _make,
    "sbatch": _slurm_sbatch,
    "salloc": _slurm_sbatch,
}
