"""What a job's constraint means for the nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.pool.backfill.features import FeatureChoice, choose

# n0 has nothing, the others what their names say
NODES = ("", "a", "b", "c", "ab", "ac", "bc", "abc")
EVERYWHERE = (1 << len(NODES)) - 1
BY_FEATURE = {
    feature: sum(1 << index for index, has in enumerate(NODES) if feature in has) for feature in ("a", "b", "c")
}


def names(mask: int) -> list[str]:
    return [has for index, has in enumerate(NODES) if mask >> index & 1]


def nodes(*wanted: str) -> int:
    return sum(1 << NODES.index(has) for has in wanted)


def chosen(text: str, among: int = EVERYWHERE) -> FeatureChoice:
    return choose(text, BY_FEATURE, among)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", list(NODES)),
        ("a", ["a", "ab", "ac", "abc"]),
        ("a&b", ["ab", "abc"]),
        ("a,b", ["ab", "abc"]),
        ("a|b", ["a", "b", "ab", "ac", "bc", "abc"]),
        ("(a&b)|c", ["c", "ab", "ac", "bc", "abc"]),
        ("c|(a&b)", ["c", "ab", "ac", "bc", "abc"]),
        ("(a|b)&c", ["ac", "bc", "abc"]),
        ("[a]", ["a", "ab", "ac", "abc"]),
        ("nobody-has-it", []),
        ("a|nobody-has-it", ["a", "ab", "ac", "abc"]),
    ],
)
def test_only_nodes_with_what_a_constraint_asks_for_are_left(text: str, left: list[str]) -> None:
    assert names(chosen(text).allowed) == left


def test_without_parentheses_a_constraint_is_worked_off_from_the_left_as_in_slurm() -> None:
    assert names(chosen("a|b&c").allowed) == ["ac", "bc", "abc"]
    assert names(chosen("b&c|a").allowed) == ["a", "ab", "ac", "bc", "abc"]


def test_in_brackets_all_nodes_must_have_the_same() -> None:
    choice = chosen("[a|b]")
    assert [names(one) for one in choice.either] == [["a", "ab", "ac", "abc"], ["b", "ab", "bc", "abc"]]
    assert names(choice.allowed) == ["a", "b", "ab", "ac", "bc", "abc"]


def test_what_stands_beside_brackets_holds_for_all_nodes() -> None:
    for text in ("c&[a|b]", "[a|b]&c", "c,[a|b]"):
        choice = chosen(text)
        assert [names(one) for one in choice.either] == [["ac", "abc"], ["bc", "abc"]]
        assert names(choice.allowed) == ["ac", "bc", "abc"]


def test_counts_ask_for_so_many_of_each_and_leave_the_other_nodes_free_to_choose() -> None:
    choice = chosen("[a*2&(b|c)*4]")
    assert choice.counted == ((BY_FEATURE["a"], 2), (BY_FEATURE["b"] | BY_FEATURE["c"], 4))
    assert choice.allowed == EVERYWHERE
    assert chosen("a*4").counted == ((BY_FEATURE["a"], 4),)
    assert chosen("c&a*4") == FeatureChoice(BY_FEATURE["c"], (), ((BY_FEATURE["a"] & BY_FEATURE["c"], 4),))


def test_only_nodes_of_the_partition_are_left() -> None:
    among = nodes("a", "b", "")
    assert chosen("a", among).allowed == nodes("a")
    assert chosen("a|b", among).allowed == nodes("a", "b")
    assert chosen("(a|b)", among).allowed == nodes("a", "b")
    assert chosen("[a|b]", among).either == (nodes("a"), nodes("b"))
    assert chosen("[a*1&b*1]", among).counted == ((nodes("a"), 1), (nodes("b"), 1))


@pytest.mark.parametrize(
    "text",
    [
        "!a", "a&!b", "a&", "&a", "|", "a||b", "(a", "a)", "()", "((a))", "[a", "a]", "[]", "[a]b", "[a|b]&[b|c]",
        "[a&b]", "[a|b&c]", "[a*2|b]", "[a*2&b]", "a*", "a*0", "a*x", "*3", "a*3|b", "a|b*3", "a|[b|c]", "[a|b]|c",
        "a*9999999999",
        "(a*2&b)", "[(a]|b)", "a*²", "((((", "a" * 5000, "]" * 5000,
    ],
)  # fmt: skip
def test_what_is_not_in_the_language_is_taken_for_no_constraint(text: str) -> None:
    assert chosen(text) == FeatureChoice(EVERYWHERE)


@given(st.text(alphabet="ab&|,()[]*!12 \n²", max_size=30) | st.text(max_size=30))
def test_no_text_raises_and_none_leaves_nodes_outside_the_partition(text: str) -> None:
    among = nodes("", "a", "b", "ab")
    choice = chosen(text, among)
    assert not choice.allowed & ~among
    for mask in (*choice.either, *(mask for mask, _ in choice.counted)):
        assert not mask & ~choice.allowed
    assert all(count > 0 for _, count in choice.counted)


# A constraint with what it means for one node that has the letters of a text.
Means = Callable[[str], bool]
Written = tuple[str, Means]

LETTERS = st.sampled_from("abcd").map(lambda letter: (letter, lambda has, letter=letter: letter in has))


def joined(first: Written, rest: list[tuple[str, Written]]) -> Written:
    """Constraints one after the other, worked off from the left."""
    text, means = first
    for joint, (more, also) in rest:
        text += joint + more
        if joint == "|":
            means = lambda has, one=means, other=also: one(has) or other(has)  # noqa: E731
        else:
            means = lambda has, one=means, other=also: one(has) and other(has)  # noqa: E731
    return text, means


def rest_of(members: st.SearchStrategy[Written]) -> st.SearchStrategy[list[tuple[str, Written]]]:
    return st.lists(st.tuples(st.sampled_from("&|,"), members), max_size=3)


GROUPS = st.builds(joined, LETTERS, rest_of(LETTERS)).map(lambda one: (f"({one[0]})", one[1]))
TERMS = LETTERS | GROUPS
PLAIN = st.builds(joined, TERMS, rest_of(TERMS))


@given(PLAIN)
def test_a_constraint_leaves_just_the_nodes_for_which_it_is_true_one_by_one(written: Written) -> None:
    text, means = written
    assert names(chosen(text).allowed) == [has for has in NODES if means(has)]


@given(TERMS, st.lists(TERMS, min_size=1, max_size=3))
def test_each_choice_in_brackets_is_what_it_would_be_alone(beside: Written, members: list[Written]) -> None:
    text = f"{beside[0]}&[{'|'.join(member for member, _ in members)}]"
    true_of = [[has for has in NODES if means(has) and beside[1](has)] for _, means in members]
    assert [names(one) for one in chosen(text).either] == true_of


@given(st.lists(st.tuples(TERMS, st.integers(1, 99)), min_size=1, max_size=3))
def test_each_count_in_brackets_is_of_what_it_would_be_alone(members: list[tuple[Written, int]]) -> None:
    text = f"[{'&'.join(f'{member}*{count}' for (member, _), count in members)}]"
    found = [(names(mask), count) for mask, count in chosen(text).counted]
    assert found == [([has for has in NODES if means(has)], count) for (_, means), count in members]
