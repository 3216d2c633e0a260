"""The comment of a pilot's job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.protocol import comment

WORDS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1).filter(lambda word: len(word.split()) == 1)


@given(WORDS, WORDS, st.just("") | WORDS)
def test_what_is_made_is_read_back(trainer: str, lease: str, daemon: str) -> None:
    made = comment.make(trainer, lease, daemon)
    assert (comment.parse(made), comment.daemon_of(made)) == ((trainer, lease), daemon)


def test_the_comment_reads_as_it_always_did() -> None:
    assert comment.make("4711", "4711.3") == "bft 4711 4711.3"
    assert comment.make("4711", "4711.3", "a1b2c3d4") == "bft 4711 4711.3 @a1b2c3d4"


@pytest.mark.parametrize(
    "other", ["", "bft", "bft 4711", "bft 4711 4711.3 more", "bftd 4711 4711.3", "BFT 4711 4711.3"]
)
def test_any_other_comment_is_no_pilots(other: str) -> None:
    assert comment.parse(other) is None
    assert comment.daemon_of(other) == ""


@pytest.mark.parametrize("letter", ["\x1b", "\x07", "\x00", "\u202e", "\ud800"])
def test_a_word_that_would_command_a_terminal_names_no_daemon(letter: str) -> None:
    assert comment.daemon_of(f"bft 1 n1.1 @{letter}[2Jbeef") == ""
    assert comment.parse(f"bft 1 n1.1 @{letter}[2Jbeef") == ("1", "n1.1")
