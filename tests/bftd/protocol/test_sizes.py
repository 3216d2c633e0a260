"""The sizes on which a trainer can run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bftd.protocol.sizes import Sizes


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    """A range, sometimes with sizes of its own."""
    low = draw(st.integers(1, 6))
    high = low + draw(st.integers(0, 6))
    only = draw(st.none() | st.lists(st.integers(low, high), min_size=1, unique=True).map(sorted).map(tuple))
    return Sizes(low, high, only)


@given(sizes(), st.integers(0, 15))
def test_the_largest_and_the_next_size_are_what_a_search_finds(allowed: Sizes, nodes: int) -> None:
    every = [size for size in range(1, 20) if allowed.allows(size)]
    assert every == list(allowed.only or range(allowed.low, allowed.high + 1))
    assert allowed.allows(0)
    assert allowed.largest(nodes) == max((size for size in every if size <= nodes), default=0)
    assert allowed.above(nodes) == min((size for size in every if size > nodes), default=nodes)
