"""States taken apart into named tensors and put together again."""

from __future__ import annotations

import pickle
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.messages import pattern, wording

pytestmark = [pytest.mark.torch]

Point = namedtuple("Point", "x y")
KEYS = st.one_of(st.integers(0, 3), st.sampled_from(["a", "b", "a.b", "0", "1"]))


def numbered(counter: list[int]) -> Any:
    import torch

    counter[0] += 1
    return torch.full((2,), float(counter[0]))


LEAVES = st.one_of(st.just("TENSOR"), st.none(), st.integers(), st.text(max_size=3))
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Point, inner, inner),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=12,
)


def filled(value: Any, counter: list[int]) -> Any:
    if value == "TENSOR":
        return numbered(counter)
    if isinstance(value, dict):
        return type(value)((key, filled(each, counter)) for key, each in value.items())
    if isinstance(value, Point):
        return Point(*(filled(each, counter) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(filled(each, counter) for each in value)
    return value


def same(one: Any, other: Any) -> bool:
    import torch

    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@settings(max_examples=60, deadline=None)
@given(STATES)
def test_a_checkpoint_comes_back_as_it_was_whatever_it_is_made_of(shape: Any) -> None:
    from elastic.checkpoint.distributed import tree

    counter = [0]
    state = filled(shape, counter)
    tensors, skeleton = tree.flatten(state)
    assert len(tensors) == counter[0]
    assert same(tree.rebuild(skeleton, tensors), state)
    again, template = tree.flatten(state)
    assert list(again) == list(tensors)
    assert same(tree.rebuild(tree.merged(skeleton, template), tensors), state)


def test_names_are_those_that_torchs_own_tools_know_and_equal_ones_are_told_apart() -> None:
    from elastic.checkpoint.distributed import tree

    counter = [0]
    tensors, _ = tree.flatten(filled({"model": {"0.weight": "TENSOR"}, "a.b": "TENSOR", "a": {"b": "TENSOR"}}, counter))
    assert list(tensors) == ["state.model.0.weight", "state.a.b", "state.('a', 'b')"]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 50), max_size=20), st.integers(1, 6))
def test_every_tensor_has_one_writer_and_nobody_writes_much_more_than_others(sizes: dict[str, int], ranks: int) -> None:
    import torch

    from elastic.checkpoint.distributed import tree

    tensors = {name: torch.zeros(size) for name, size in sizes.items()}
    shares = [tree.share(tensors, rank, ranks) for rank in range(ranks)]
    assert sorted(name for share in shares for name in share) == sorted(tensors)
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0) + len(sizes)


def test_the_first_three_differences_are_shown_and_the_others_counted() -> None:
    from elastic.checkpoint.distributed import tree

    found = tree.differences({f"state.w{n}": (2, 3) for n in range(5)} | {"state.s": ()}, {"state.x": (1,)})
    assert tree.told(found) == (
        wording(
            "elastic.tree.not_there_now",
            shown=wording("elastic.tree.not_there_now", shown=wording("elastic.tree.not_there_now", shown="s") + "; w0")
            + "; w1",
        )
        + "; and 4 more"
    )
    assert tree.differences({"state.s": ()}, {"state.s": (2, 3)}) == [
        wording("elastic.tree.was_and_is", shown="s", saved="a scalar", given="2x3")
    ]


def test_sparse_and_quantized_tensors_stay_whole_beside_the_others() -> None:
    import torch

    from elastic.checkpoint.distributed import tree

    state = {"sparse": torch.eye(3).to_sparse(), "dense": torch.eye(3)}
    tensors, skeleton = tree.flatten(state)
    assert list(tensors) == ["state.dense"]
    assert torch.equal(tree.rebuild(skeleton, tensors)["sparse"].to_dense(), torch.eye(3))


def test_a_shard_that_cannot_be_put_together_again_is_refused_and_not_taken_for_the_whole() -> None:
    from elastic.base.errors import CheckpointError
    from elastic.checkpoint import distributed
    from elastic.checkpoint.distributed import tree

    class ShardedTensor:
        pass

    assert distributed.wanted({"model": [ShardedTensor()]})
    with pytest.raises(CheckpointError, match="use FSDP2"):
        tree.flatten({"model": [ShardedTensor()]})


def test_a_checkpoint_that_came_whole_goes_into_the_tensors_of_another() -> None:
    import torch

    from elastic.base.errors import CheckpointError
    from elastic.checkpoint import distributed

    into = {"w": torch.zeros(2), "optimizer": {}, "step": 0}
    saved = {"w": torch.ones(2), "optimizer": {0: {"m": torch.full((2,), 2.0)}}, "step": 7}
    state = distributed.copied(saved, into)
    assert state["w"] is not saved["w"]
    assert state["w"].data_ptr() == into["w"].data_ptr()
    assert (into["w"].tolist(), state["step"], state["optimizer"][0]["m"].tolist()) == ([1.0, 1.0], 7, [2.0, 2.0])
    with pytest.raises(CheckpointError, match="another model: w was 2 and is 3"):
        distributed.copied(saved, {"w": torch.zeros(3), "optimizer": {}, "step": 0})


def test_regression_a_checkpoint_could_not_be_loaded_into_an_expanded_tensor() -> None:
    import torch

    from elastic.base.errors import CheckpointError
    from elastic.checkpoint import distributed

    into = {"w": torch.zeros(3, 1).expand(3, 4)}
    saved = {"w": torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 4).clone()}
    distributed.copied(saved, into)
    assert torch.equal(into["w"], saved["w"])
    saved["w"][1, 2] = 7.0
    with pytest.raises(CheckpointError, match=pattern("elastic.loading.expanded", name="w")):
        distributed.copied(saved, into)


def test_regression_a_skeleton_of_the_module_s_name_before_could_not_be_read() -> None:
    from elastic.checkpoint.distributed import tree

    leaf = tree.Leaf("state.model.weight", True)
    before = pickle.dumps(leaf, protocol=2).replace(tree.__name__.encode(), b"elastic.bypath.tree")
    assert b"elastic.bypath.tree" in before
    assert pickle.loads(before) == leaf
