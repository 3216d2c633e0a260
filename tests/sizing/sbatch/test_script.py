"""Putting lines into a user's script: his own words stay, whatever they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from sizing.sbatch.lines import SbatchLine
from sizing.sbatch.script import agree, insert
from tests.support.messages import wording

LINES = ("#SBATCH --partition=a100", "#SBATCH --nodes=1")


def test_lines_go_behind_the_last_sbatch_line_and_before_the_code() -> None:
    source = "#!/bin/bash\n#SBATCH -J x\n# a word\n#SBATCH -t 5\n\nsrun a\n#SBATCH --late\n"
    assert insert(source, LINES) == (
        "#!/bin/bash\n#SBATCH -J x\n# a word\n#SBATCH -t 5\n" + "".join(f"{line}\n" for line in LINES)
        + "\nsrun a\n#SBATCH --late\n"
    )  # fmt: skip


def test_a_script_without_options_gets_them_behind_its_shell() -> None:
    assert insert("#!/bin/sh\nsrun a\n", LINES[:1]) == f"#!/bin/sh\n{LINES[0]}\nsrun a\n"


def test_line_ends_of_windows_stay_what_they_are() -> None:
    text = insert("#!/bin/sh\r\n#SBATCH -J x\r\nsrun a\r\n", LINES)
    assert text == "#!/bin/sh\r\n#SBATCH -J x\r\n#SBATCH --partition=a100\r\n#SBATCH --nodes=1\r\nsrun a\r\n"


def test_a_last_line_without_an_end_still_has_none() -> None:
    assert insert("#!/bin/sh", LINES) == "#!/bin/sh\n" + "\n".join(LINES)
    assert insert("#!/bin/sh\nsrun a", LINES[:1]) == f"#!/bin/sh\n{LINES[0]}\nsrun a"


def test_a_script_without_a_shell_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="first line"):
        insert("srun a\n", LINES)


@given(
    st.lists(st.text(st.characters(blacklist_characters="\n", blacklist_categories=()), max_size=20), max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_taking_the_new_lines_out_again_gives_the_script_back(rest: list[str], ending: str, ends: bool) -> None:
    source = ending.join(["#!/bin/bash", *rest]) + (ending if ends else "")
    text = insert(source, LINES)
    pieces = [piece for end in ("\n", ending) for piece in (end.join(LINES) + end, end + end.join(LINES))]
    assert any(piece in text and text.replace(piece, "", 1) == source for piece in pieces)
    # sbatch reads options up to the first line of code: ours must stand before it
    head = []
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            break
        head.append(line.rstrip("\r"))
    assert all(line in head for line in LINES)


def test_what_the_user_wrote_in_other_words_is_not_written_again() -> None:
    lines = (
        SbatchLine("partition", "a100", ""),
        SbatchLine("gres", "gpu:a100:2", ""),
        SbatchLine("mem", "100G", ""),
        SbatchLine("nodes", "1", ""),
    )
    missing, kept = agree(lines, {"gpus": "4", "mem-per-cpu": "2G", "nodes": "1", "job-name": "x"})
    assert [line.option for line in missing] == ["partition"]
    assert [(each.option, each.differs) for each in kept] == [("gpus", True), ("mem-per-cpu", True), ("nodes", False)]
    assert kept[0].sentence() == wording(
        "sizing.script.script_stays", mine="--gpus=4", whose="plan", option="gres", value="gpu:a100:2"
    )
    assert kept[2].sentence() == wording("sizing.script.in_script", mine="--nodes=1")


def test_of_two_options_that_say_the_same_the_lines_own_is_compared() -> None:
    _, kept = agree((SbatchLine("ntasks-per-node", "2", ""),), {"ntasks": "2", "ntasks-per-node": "2"})
    assert [each.differs for each in kept] == [False]
