"""Every command of the documentation is there, with the options that a page gives it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftd.cli.main import bft
from tests.docs import known, written

RUN = {"administrators", "scientists", "solvers"}
"""The sessions that test_sessions_cluster.py runs."""


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Where each command line of the fenced blocks stands, and its text."""
    for block in written.blocks(page):
        if block.tag in written.COMMAND_TAGS or (not block.tag and begins_with_a_command(block)):
            yield from ((f"{block.page}:{line.at}", line.text) for line in block.lines)


def begins_with_a_command(block: written.Block) -> bool:
    if block.prompted:
        return True
    if block.lines and known.is_no_command(block.lines[0].text):
        return False
    for line in block.lines:
        if line.text.startswith("#"):
            continue
        try:
            found = written.words(line.text)
        except ValueError:
            return False
        return bool(found) and known.is_command(found[0][0])
    return False


@pytest.mark.parametrize("page", written.PAGES, ids=written.name)
def test_every_command_in_a_block_is_known_and_has_the_options_that_it_is_given(page: Path) -> None:
    wrong = []
    for where, text in commands(page):
        try:
            found = written.words(text)
        except ValueError as error:
            wrong.append(f"{where}: {text}: {error}")
            continue
        wrong += [f"{where}: {text}: {why}" for words in found if (why := known.problem(words, whole=True))]
    assert wrong == []


@pytest.mark.parametrize("page", written.PAGES, ids=written.name)
def test_every_command_in_a_sentence_has_the_options_that_it_is_given(page: Path) -> None:
    wrong = []
    for where, text in written.inline(page):
        first = text.split(" ", 1)[0]
        if first not in ("bft", "bftd", "python", "make", "sbatch") or text in known.SENTENCES or " " not in text:
            continue
        found = known.from_inline(text)
        wrong += [f"{where}: `{text}`: {why}" for words in found if (why := known.problem(words, whole=False))]
    assert wrong == []


@pytest.mark.parametrize("page", written.PAGES, ids=written.name)
def test_every_block_says_what_it_is_or_begins_with_a_command(page: Path) -> None:
    untold = [
        f"{block.where}: {block.lines[0].text}"
        for block in written.blocks(page)
        if not block.tag
        and block.lines
        and not begins_with_a_command(block)
        and not known.is_no_command(block.lines[0].text)
    ]
    assert untold == [], "give these blocks a language (text where there is none), or see tests/docs/known.py"


def test_all_blocks_of_commands_are_a_shells() -> None:
    texts = [(where, text) for page in written.PAGES for where, text in commands(page)]
    loops = ("for ", "do", "done", "[ ", "setsid ", "#")  # of one command over several lines
    script = "".join(
        f"f{number}() {{ {text}\n}}\n"
        for number, (_, text) in enumerate(texts)
        if not text.startswith(loops) and not text.endswith("|")  # a pipe may go on in the next line
    )
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("group", ["bft", "bft size"])
def test_the_help_of_a_group_ends_with_three_examples_that_are_there(group: str) -> None:
    shown = CliRunner().invoke(bft, [*group.split()[1:], "--help"], prog_name="bft").output.splitlines()
    examples = shown[shown.index("  Examples:") + 1 :]
    assert len(examples) == 3
    assert max(map(len, shown)) <= 80
    for line in examples:
        (words,) = written.words(line.partition("#")[0])
        assert " ".join(words).startswith(f"{group} ")
        assert known.problem(words, whole=True) is None, line


def test_all_sessions_are_run() -> None:
    named = {block.run for page in written.PAGES for block in written.blocks(page) if block.run}
    assert named == RUN


def test_no_exception_is_of_a_sentence_that_is_gone() -> None:
    said = {text for page in written.PAGES for _, text in written.inline(page)}
    assert set(known.SENTENCES) <= said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bft statsu", "bft has no command statsu"),
        ("bft status --wacth", "No such option"),
        ("bft tune --objective best", "is not one of"),
        ("bft tune --t-fwd soon", "not a valid"),
        ("bft solve", "lacks"),
        ("bft sbatch --elastic=8-1 train.py", "MIN is above MAX"),
        ("sbatch --elastic=1-8,bcakend=horovod train.py", "bcakend"),
        ("python -m benchmarks.nothing", "no module"),
        ("python -m benchmarks.milp --jsno", "has no --jsno"),
        ("make tset", "the Makefile has no tset"),
        ("kubectl get pods", "in no table"),
        ("echo $(bft statsu) | cat", "bft has no command statsu"),
        ("sudo -u bftd bft statsu", "bft has no command statsu"),
        ("if true; then bft statsu; fi", "bft has no command statsu"),
        ("bft sbatch --elastc=1-4 examples/train_torchrun.py", "sbatch has no --elastc"),
        ("bft sbatch --elastic=1-4 examples/train_torch.py", "there is no examples/train_torch.py"),
        ("bft sbatch --elastic=1-4 examples/train_torchrun.py --stpes 4", "examples/train_torchrun.py has no --stpes"),
        ("python examples/optuna_hpo.py --foldr x", "examples/optuna_hpo.py has no --foldr"),
        ("promtool check rules docs/monitoring/rulez.yml", "there is no docs/monitoring/rulez.yml"),
    ],
)
def test_a_command_that_would_not_work_is_told(text: str, why: str) -> None:
    found = [problem for words in written.words(text) if (problem := known.problem(words, whole=True))]
    assert why in " ".join(found)
