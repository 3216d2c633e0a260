"""The environment and the node names that Slurm's commands get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.clients.env import scrubbed
from slurm_plugin.errors import SlurmError
from slurm_plugin.nodeset import expand, fold
from tests.support.messages import pattern


def test_only_the_variable_that_names_the_cluster_survives() -> None:
    environ = {
        "PATH": "/bin",
        "SLURM_CONF": "/c",
        "SLURM_JOB_ID": "1",
        "SQUEUE_FORMAT": "x",
        "SBATCH_PARTITION": "y",
        "SINFO_FORMAT": "z",
        "SALLOC_IMMEDIATE": "1",
        "SRUN_CONTAINER": "c",
    }
    assert scrubbed(environ) == {"PATH": "/bin", "SLURM_CONF": "/c"}


def test_node_names_are_folded_in_order() -> None:
    assert fold(["n7", "n2", "n1", "n3"]) == "n[1-3,7]"
    assert fold([]) == ""


@pytest.mark.parametrize("text", ["", "(null)"])
def test_no_nodes_expand_to_nothing(text: str) -> None:
    assert expand(text) == []


def test_what_is_no_node_set_is_one_error() -> None:
    with pytest.raises(SlurmError, match=pattern("slurm_plugin.nodeset.not_a_node_set", text="n[1-")):
        expand("n[1-")


@given(st.sets(st.integers(1, 500), min_size=1))
def test_folding_and_expanding_gives_the_same_nodes(numbers: set[int]) -> None:
    names = [f"n{number}" for number in sorted(numbers)]
    assert expand(fold(names)) == names


def test_regression_a_range_wider_than_any_cluster_was_written_out_for_minutes() -> None:
    with pytest.raises(SlurmError, match="^" + pattern("slurm_plugin.nodeset.too_wide", text="n[1-100000000]") + "$"):
        expand("n[1-100000000]")
    assert len(expand("n[1-100000]")) == 100_000


def test_regression_two_ranges_in_a_name_were_multiplied_for_minutes() -> None:
    with pytest.raises(SlurmError, match=pattern("slurm_plugin.nodeset.too_many_nodes")):
        expand("r[1-9999]n[1-9999]")
    assert expand("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]


def test_regression_many_wide_ranges_were_each_written_out_before_they_were_counted() -> None:
    with pytest.raises(SlurmError, match=pattern("slurm_plugin.nodeset.too_wide")):
        expand(",".join(f"n{name}x[1-999999]" for name in range(40)))
    many = [f"rack{1000 + name}-9999" for name in range(2000)]
    assert expand(",".join(many)) == many, "these numbers are no ranges"


def test_regression_a_group_of_clustershell_was_looked_up_on_this_host() -> None:
    assert expand("n1,@all") == ["@all", "n1"]
    assert fold(["n1", "@all"]) == "@all,n1"
