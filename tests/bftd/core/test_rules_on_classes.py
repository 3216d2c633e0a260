"""The rules of `test_rules` on a cluster of several classes of nodes, with trainers that ask for some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, rule

from bftd.protocol.registration import Registration
from bftd.protocol.requirements import Requirements
from slurm_plugin.read.types import Node
from tests.bftd.core.test_rules import NODES, Cluster

pytestmark = pytest.mark.slow

REQUIREMENTS: Sequence[Requirements] = (
    Requirements(),
    Requirements(gpu="a100"),
    Requirements(),
    Requirements(gpus=2),
    Requirements(mix=True),
    Requirements(without=("a100",)),
    Requirements(gpus=1, mix=True),
    Requirements(gpu="h100"),
)


class MixedCluster(Cluster):
    """See the module; which trainer asks for what goes by their numbers."""

    refitted = False

    def hardware(self, item: Node) -> Node:
        """Three nodes with two GPUs of one type, two with one of another, and one without."""
        number = NODES.index(item.name)
        kind, count = (("a100", 2), ("a100", 2), ("a100", 2), ("v100", 1), ("v100", 1), ("", 0))[number]
        if self.refitted and number == 2:
            kind, count = "v100", 1
        return replace(item, gpus={kind: count}, gres=f"gpu:{kind}:{count}") if count else item

    def requirements(self, item: Registration) -> Registration:
        """What it asks for."""
        return replace(item, requirements=REQUIREMENTS[int(item.id) % len(REQUIREMENTS)])

    @rule()
    def a_node_is_refitted(self) -> None:
        """And is of another class from then on, whoever holds it."""
        self.refitted = not self.refitted

    @invariant()
    def S6_every_trainer_is_on_what_it_asked_for(self) -> None:
        """By what Slurm last showed: of one class unless it mixes them, and of no other than it may use."""
        if self.state.plan_due or not self.state.pool.seen:
            return
        seen = self.state.pool.nodes
        for item in self.state.trainers.values():
            held = [seen[one.node] for one in self.state.leases.values() if one.live and one.trainer == item.id]
            requirements = item.request.requirements
            assert requirements.mix or len({one.node_class for one in held}) <= 1, f"{item.id} mixes classes"
            assert all(one.gpus >= requirements.gpus for one in held)
            assert all(one.gres.startswith(f"gpu:{requirements.gpu}") for one in held if requirements.gpu)

    def teardown(self) -> None:
        """L1 of uniform pools says nothing here: idle nodes may be of no class that a trainer may use."""


TestMixedCluster = MixedCluster.TestCase
TestMixedCluster.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
del Cluster  # its own tests stand in its own module
