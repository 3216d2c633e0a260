"""Whose fault a failure is: one bad node never ends a trainer, and a bad script always does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.base.errors import EXIT_LINK_LOST
from elastic.driver.failures.blame import NODE_TRIES, QUIET_S, RESTARTS_MOST, SOUND_S, TRIES, Blame, Verdict

pytestmark = pytest.mark.slow

NODES = ["n1", "n2", "n3", "n4"]
nodes = st.sampled_from(NODES)
groups = st.lists(nodes, min_size=1, unique=True)


class Trainer:
    """A trainer of some nodes: its restarts, and the nodes that are given back and come again."""

    def __init__(self, *members: str, saved: int = 50) -> None:
        self.blame = Blame()
        self.members = list(members)
        self.now_s = 1e6
        self.step = saved
        if saved:
            self.blame.saved(saved, self.now_s)

    def fail(self, *failing: str, rc: int = 1, reached: int = 52, after_s: float = 5.0, peers: str = "") -> str:
        """Workers on these nodes fail in one incident, and those of its `peers`; who is at fault at the end."""
        self.now_s += after_s
        said = [(node, f"code {rc}") for node in failing] + [(node, f"closed by {node}") for node in peers.split()]
        lost = rc == EXIT_LINK_LOST
        verdicts = [self.blame.failed(node, what, lost, reached, self.now_s, self.members) for node, what in said]
        for node in self.members:
            self.blame.began(node)
        found = [verdict.whose for verdict in verdicts]
        return next((whose for whose in ("the script's", "the node's") if whose in found), "nobody's")

    def train(self, *members: str, step: int, after_s: float = 1.0) -> None:
        """These nodes end a step together; nothing is saved."""
        self.now_s += after_s
        for node in members:
            self.blame.stepped(node, step, self.now_s, members)

    def save(self, step: int, after_s: float = 1.0) -> None:
        self.now_s += after_s
        self.blame.saved(step, self.now_s)


# -- the script's ---


def test_regression_a_script_that_failed_at_the_same_batch_began_anew_for_ever_since_it_took_a_step_each_time() -> None:
    trainer = Trainer("n1")
    said = []
    for _ in range(3):
        trainer.train("n1", step=51)
        trainer.train("n1", step=52)
        said.append(trainer.fail("n1", rc=3))
    assert said == ["nobody's", "nobody's", "the script's"]


def test_a_checkpoint_of_a_higher_step_settles_what_failed_before() -> None:
    trainer = Trainer("n1")
    for step in range(51, 90):
        assert trainer.fail("n1") == "nobody's"
        trainer.save(step, after_s=0.0)


def test_the_same_failure_on_another_node_is_the_scripts_though_the_first_was_given_back() -> None:
    trainer = Trainer("n1", "n2", "n3")
    assert [trainer.fail("n1"), trainer.fail("n1")] == ["nobody's", "the node's"]
    trainer.members.remove("n1")
    trainer.train("n2", "n3", step=52)  # as far as the others came, and no further
    assert trainer.fail("n2") == "the script's"


def test_all_workers_that_fail_at_once_fail_once() -> None:
    trainer = Trainer(*NODES)
    said = [trainer.fail(*NODES) for _ in range(3)]
    assert said == ["nobody's", "nobody's", "the script's"]


def test_the_peers_of_a_bad_node_do_not_make_it_the_scripts_fault() -> None:
    """Gloo's neighbours of a dead rank fail with it, also where they are all the others."""
    trainer = Trainer("n1", "n2", saved=0)
    assert trainer.fail("n2", peers="n1") == "nobody's"
    for _ in range(5):
        assert trainer.fail("n2", peers="n1") == "the node's"


def test_a_node_that_is_heard_of_with_another_ones_fault_now_and_then_does_not_hide_it() -> None:
    trainer = Trainer(*NODES, saved=0)
    assert trainer.fail("n1", "n2") == "nobody's"
    assert trainer.fail("n2", "n3") == "the node's"
    for neighbour in ("n1", "n3", "n4", "n1"):
        assert trainer.fail("n2", neighbour) == "the node's"


@given(st.lists(st.permutations(["n1", "n2"]), min_size=3, max_size=6))
def test_a_script_that_fails_everywhere_ends_at_the_third_incident(scene: list[list[str]]) -> None:
    trainer = Trainer("n1", "n2")
    for count, failing in enumerate(scene, start=1):
        whose = trainer.fail(*failing)
        assert whose == ("the script's" if count >= TRIES else "nobody's")


@given(st.lists(st.tuples(groups, st.sampled_from([1, -9, EXIT_LINK_LOST])), min_size=40, max_size=40))
def test_nothing_that_fails_without_progress_goes_on_for_ever(scene: list[tuple[list[str], int]]) -> None:
    trainer = Trainer(*NODES)
    said = [trainer.fail(*failing, rc=rc) for failing, rc in scene]
    assert "the script's" in said
    assert said.index("the script's") <= 3 * RESTARTS_MOST


@given(st.lists(st.tuples(groups, st.integers(1, 30)), max_size=40))
def test_a_saved_step_above_the_last_one_begins_every_count_anew(scene: list[tuple[list[str], int]]) -> None:
    trainer = Trainer(*NODES)
    step = 50
    for failing, more in scene:
        assert trainer.fail(*failing) != "the script's"
        step += more
        trainer.save(step)


def test_a_script_that_saves_nothing_is_not_ended_for_failures_of_long_ago_but_for_ten_in_all() -> None:
    trainer = Trainer("n1", saved=0)
    said = [trainer.fail("n1", after_s=QUIET_S + 1) for _ in range(RESTARTS_MOST)]
    assert said == ["nobody's"] * (RESTARTS_MOST - 1) + ["the script's"]


def test_what_follows_of_a_worker_that_ended_with_0_is_the_scripts_at_the_third_time_whatever_is_saved() -> None:
    blame = Blame()
    said = []
    for step in (10, 20, 30):
        said.append(blame.ended_early())
        blame.saved(step, 0.0)
    assert said == [Verdict("nobody's", 1), Verdict("nobody's", 2), Verdict("the script's", 3)]


def test_lives_that_fail_are_counted_like_crashes_and_not_twice_with_them() -> None:
    trainer = Trainer("n1", "n2")
    assert trainer.blame.workers_failed(trainer.now_s) == Verdict("nobody's")
    for count in (2, 3):
        said = [trainer.blame.failed(node, "", False, 52, trainer.now_s, ["n1", "n2"]).whose for node in ("n1", "n2")]
        said.append(trainer.blame.workers_failed(trainer.now_s).whose)
        assert ("the script's" in said) == (count == 3)
        trainer.blame.began("n1")
        trainer.blame.began("n2")


# -- the node's ---


def test_regression_a_bad_node_among_healthy_ones_failed_fifty_times_and_was_never_given_back() -> None:
    trainer = Trainer("good", "bad")
    said = []
    for crash in range(50):
        said.append(trainer.fail("bad", reached=-1))
        trainer.train("good", step=51 + crash)
        trainer.save(51 + crash, after_s=0.0)
    assert said == ["nobody's"] + ["the node's"] * 49


@given(
    st.lists(st.tuples(st.sampled_from([1, -9, 137, EXIT_LINK_LOST]), st.integers(0, 5), st.booleans()), max_size=60)
)
def test_one_bad_node_never_ends_a_trainer_whose_other_nodes_go_on(scene: list[tuple[int, int, bool]]) -> None:
    trainer = Trainer("n1", "n2", "bad")
    step = 50
    for rc, more, saves in scene:
        if trainer.fail("bad", rc=rc, reached=step) == "the node's":
            trainer.members.remove("bad")
        step += 1 + more
        trainer.train("n1", "n2", step=step)
        if saves:
            trainer.save(step)
        if "bad" not in trainer.members:
            trainer.members.append("bad")  # the daemon grants it again
    assert trainer.fail("bad", reached=step) != "the script's"


def test_a_node_is_sound_again_once_it_has_trained_for_a_minute_and_until_a_checkpoint_was_saved() -> None:
    trainer = Trainer("n1", "n2")
    for again in range(5):
        assert trainer.fail("n2") == "nobody's", again
        trainer.train("n1", "n2", step=60 * again + 60)
        trainer.save(60 * again + 61, after_s=SOUND_S + 1)
    assert trainer.fail("n2") == "nobody's"
    trainer.train("n1", "n2", step=1000)
    trainer.save(1001, after_s=SOUND_S - 2)
    assert trainer.fail("n2") == "the node's"


def test_the_only_node_is_not_given_back_for_its_failures() -> None:
    trainer = Trainer("n1")
    said = [trainer.fail("n1") for _ in range(NODE_TRIES)]
    assert said == ["nobody's"] * NODE_TRIES


def test_at_most_one_node_is_given_back_for_one_incident() -> None:
    trainer = Trainer(*NODES)
    trainer.fail("n1", "n2")
    verdicts = [trainer.blame.failed(node, "", False, 52, trainer.now_s, NODES).whose for node in ("n1", "n2")]
    assert verdicts == ["the node's", "nobody's"]


def test_a_worker_that_lost_its_link_says_nothing_of_the_script() -> None:
    trainer = Trainer("n1")
    said = [trainer.fail("n1", rc=EXIT_LINK_LOST) for _ in range(RESTARTS_MOST)]
    assert said == ["nobody's"] * (RESTARTS_MOST - 1) + ["the script's"]
    others = Trainer("n1", "n2")
    assert [others.fail("n1", rc=EXIT_LINK_LOST) for _ in range(2)] == ["nobody's", "the node's"]


def test_a_node_that_does_not_come_is_at_fault_at_once_and_not_for_ever() -> None:
    trainer = Trainer("n1", "n2")
    said = [trainer.blame.absent("n2", trainer.now_s).whose for _ in range(3 * RESTARTS_MOST)]
    assert said == ["the node's"] * (3 * RESTARTS_MOST - 1) + ["the script's"]


# -- nodes that cannot begin ---


def test_two_nodes_that_say_the_same_before_any_was_ready_show_that_it_is_no_node() -> None:
    blame = Blame()
    assert blame.cannot("n1", "no torch", ready=0).whose == "the node's"
    assert blame.cannot("n2", "no libcuda", ready=0).whose == "the node's"
    assert blame.cannot("n3", "no torch", ready=0).whose == "the script's"


def test_the_only_node_ever_tried_may_say_it_three_times() -> None:
    blame = Blame()
    assert [blame.cannot("n1", "no torch", ready=0).whose for _ in range(3)] == ["the node's"] * 2 + ["the script's"]


def test_many_nodes_that_each_say_something_else_end_it_too() -> None:
    blame = Blame()
    said = [blame.cannot(f"n{number}", f"fault {number}", ready=0).whose for number in range(4)]
    assert said == ["the node's"] * 3 + ["the script's"]


@given(st.lists(nodes, min_size=1, max_size=50))
def test_no_number_of_nodes_that_cannot_begin_ends_a_trainer_that_has_ready_ones(bad: list[str]) -> None:
    blame = Blame()
    blame.ready()
    assert {blame.cannot(node, "no torch", ready=1).whose for node in bad} == {"the node's"}


def test_what_was_there_and_is_gone_from_three_nodes_ends_a_trainer_that_has_none_left() -> None:
    blame = Blame()
    blame.ready()
    said = [blame.cannot(node, "no torch", ready=0).whose for node in ("n1", "n2", "n3")]
    assert said == ["the node's", "the node's", "the script's"]
    blame.ready()
    assert blame.cannot("n4", "no torch", ready=0).whose == "the node's"


def test_what_lies_in_an_image_is_told_by_its_first_node_and_never_ends_a_trainer_that_has_run() -> None:
    """Every further try may fetch the image again; but one that has worked is held up by one node alone."""
    assert Blame().cannot("n1", "no torch", ready=0, sure=True).whose == "the script's"
    assert Blame().cannot("n1", "no torch", ready=1, sure=True).whose == "the node's"
    blame = Blame()
    blame.ready()
    assert blame.cannot("n1", "no such image", ready=0, sure=True).whose == "the node's"
