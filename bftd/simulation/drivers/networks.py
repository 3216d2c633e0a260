"""The networks of the paper's Table 2, and the default list of trainers made of them."""

from __future__ import annotations

from bftd.simulation.drivers.trainers import SimTrainer

# Thousands of samples per second on 1, 2, 4, ... 64 nodes of Summit: Table 2 of Liu et al., "BFTrainer: Low-Cost
# Training of Neural Networks on Unfillable Supercomputer Nodes". ShuffleNet is not concave: the step from 4 to 8
# nodes adds more per node than the one from 2 to 4 did, so looking a few nodes ahead is not enough.
TABLE_2_NODES = (1, 2, 4, 8, 16, 32, 64)
TABLE_2 = {
    "AlexNet": (7.1, 13.1, 21.1, 40.5, 74.0, 130.8, 202.1),
    "ResNet18": (5.2, 10.6, 20.4, 39.6, 78.0, 144.8, 262.7),
    "MnasNet": (3.2, 6.0, 11.5, 23.1, 43.9, 83.5, 160.5),
    "MobileNets": (3.0, 5.9, 11.4, 22.0, 42.5, 82.3, 155.2),
    "ShuffleNet": (2.8, 5.3, 10.0, 20.4, 38.9, 74.1, 145.1),
    "VGG-16": (1.2, 2.4, 4.7, 9.3, 18.3, 36.2, 70.2),
    "DenseNet": (1.0, 2.0, 3.8, 7.6, 15.0, 28.8, 57.8),
}
# 100 epochs of ImageNet, as the paper trains each network (its section 4.2).
WORK_SAMPLES = 130e6
# Seconds, as in the authors' own replays, where they vary by about one second from network to network.
UP_COST_S, DOWN_COST_S = 18.0, 12.0


def representative() -> tuple[SimTrainer, ...]:
    """Return one trainer of each network of Table 2, on 1 to 64 nodes, planned by samples/s, the daemon's default.

    Networks that scale badly and well, small and large ones, are equally represented, from AlexNet with 5 node-hours of
    work to DenseNet with 36.
    """
    return tuple(_trainer(number, network) for number, network in enumerate(TABLE_2, start=1))


def _trainer(number: int, network: str) -> SimTrainer:
    rates = (1000.0 * thousands for thousands in TABLE_2[network])
    curve = ((0, 0.0), *zip(TABLE_2_NODES, rates, strict=True))
    return SimTrainer(
        name=f"J{number}-{network}",
        nodes_min=1,
        nodes_max=TABLE_2_NODES[-1],
        work_samples=WORK_SAMPLES,
        curve=curve,
        objective=curve,
        up_cost_s=UP_COST_S,
        down_cost_s=DOWN_COST_S,
    )
