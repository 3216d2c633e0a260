"""The regular expression of `--regex` and the lines that it is searched in: whatever a command prints."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from sizing.cpu.patterns import OutputLines, Pattern, number, plain, suggested
from tests.support.messages import excerpt, wording


def test_the_groups_of_an_expression_are_read_samples_before_steps() -> None:
    assert Pattern(r"step (?P<step>\d+)").search("loss 3 step 17") == ("step", 17)
    assert Pattern(r"(?P<rate>[\d.]+) img/s").search("epoch 1: 1,200.5 img/s") == ("rate", 200.5)
    assert Pattern(r"(?P<rate>[\d.,]+) img/s").search("epoch 1: 1,200.5 img/s") == ("rate", 1200.5)
    both = Pattern(r"step (?P<step>\d+)(?: samples (?P<samples>\d+))?")
    assert both.search("step 3 samples 96") == ("samples", 96)
    assert both.search("step 4") == ("step", 4)
    assert both.search("nothing") is None


@pytest.mark.parametrize(
    ("regex", "said"),
    [
        ("step (", excerpt("sizing.cpu_patterns.not_a_regex")),
        ("step [0-9]+", wording("sizing.cpu_patterns.no_group")),
        ("(?P<iteration>[0-9]+)", wording("sizing.cpu_patterns.unknown_group", named="iteration")),
        ("(?P<step>[0-9]+", excerpt("sizing.cpu_patterns.not_a_regex")),
        ("a{99999999999999999999}(?P<step>.)", excerpt("sizing.cpu_patterns.not_a_regex")),
    ],
)
def test_an_expression_that_cannot_be_used_is_one_line_with_an_example(regex: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        Pattern(regex)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_expression_that_never_ends_is_given_up_with_a_line() -> None:
    pattern = Pattern(r"(a+)+(?P<step>\d)")
    began_s = time.process_time()
    assert pattern.search("a" * 60) is None
    assert time.process_time() - began_s < 5
    assert "takes too long" in pattern.said
    assert pattern.search("a1") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("1,024", 1024), ("1_000.5", 1000.5), ("3e2", 300), (".5", 0.5), ("7.", 7), ("0", 0)],
)
def test_numbers_are_read_as_scripts_print_them(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text", ["", "-3", "nan", "inf", "1e999", "1e300", "1e9999", "1.2.3", "0x10", "9" * 50, "one", "\u0663"]
)
def test_what_is_no_number_is_none(text: str) -> None:
    assert number(text) is None


def test_lines_end_at_carriage_returns_and_have_no_colours() -> None:
    lines = OutputLines()
    assert lines.feed(b"\x1b[32m 10%|#   | 10/100 \x1b[0m\r 20%") == ["10%|#   | 10/100"]
    assert lines.feed(b"|##  | 20/100\r\n\n") == ["20%|##  | 20/100"]
    assert lines.feed(b"no end") == []
    assert lines.end() == ["no end"]
    assert lines.last == "no end"


def test_a_line_cut_anywhere_is_the_same_line() -> None:
    text = b"one two\nthree\r\nfour \xc3\xa9\n"
    for cut in range(len(text)):
        lines = OutputLines()
        assert lines.feed(text[:cut]) + lines.feed(text[cut:]) == ["one two", "three", "four é"]


def test_a_line_without_an_end_takes_no_memory_and_its_begin_is_read() -> None:
    lines = OutputLines()
    chunk = b"x" * 2**20
    began_s = time.process_time()
    lines.feed(b"step 5 ")
    for _ in range(200):
        lines.feed(chunk)
    assert time.process_time() - began_s < 2
    (line,) = lines.feed(b"\n")
    assert line.startswith("step 5 xxx")
    assert len(line) == 4096


def test_binary_output_is_text_that_a_terminal_can_be_given() -> None:
    said = plain(bytes(range(256)))
    assert said.isprintable()
    assert plain(b"\x1b]0;title\x07hello\x1b[2J") == "hello"


@pytest.mark.parametrize(
    ("before", "line", "step"),
    [
        ("30160/100000 loss 0.1", "30170/100000 loss 0.2", 30170),
        ("epoch 1 step 30 loss 0.5", "epoch 1 step 1,040 loss 0.4", 1040),
        (" 30%|###   | 30/100 [00:10<00:20, 3.0it/s]", " 31%|####  | 31/100 [00:11<00:20, 3.1it/s]", 31),
        ("[2024-01-01 10:00:01] iter: 5", "[2024-01-01 10:00:03] iter: 7", 7),
        ("{'loss': 0.5, 'step': 10}", "{'loss': 0.4, 'step': 20}", 20),
        ("(1) a 5", "(1) a 6", 6),
        ("12", "13", 13),
    ],
)
def test_an_expression_for_the_number_that_grows_is_suggested(before: str, line: str, step: int) -> None:
    for said in ([before, line], [before, "saved", line], [before, line, "saved"]):
        assert Pattern(suggested(said)).search(line) == ("step", step)


@pytest.mark.parametrize(
    "lines",
    [[], ["starting"], ["loss 0.4", "loss 0.3"], ["step 5", "step 5"], ["10:00:01", "10:00:02"], ["a 1", "b 2"]],
)
def test_no_expression_is_suggested_where_no_count_grows(lines: list[str]) -> None:
    assert suggested(lines) == ""


@given(st.lists(st.text(alphabet="ab 01239.,:/%[(", max_size=12), max_size=5))
def test_what_is_suggested_finds_a_step_in_a_line(lines: list[str]) -> None:
    if expression := suggested(lines):
        assert any(Pattern(expression).search(line) for line in lines)
