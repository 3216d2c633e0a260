"""The numbers that the paper prints (arXiv:2106.12091), to stand beside ours.

Liu et al., "BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes". Only numbers that its
tables or its text give; points of its plots are not guessed.
"""

from __future__ import annotations

# Table 1, the row of Summit over two months; section 2.1, its first two weeks.
TABLE_1 = {"inc_per_h": 41.7, "dec_per_h": 28.6, "ratio": 0.111, "eq_nodes": 524.0}
TWO_WEEKS = {
    "events_per_h": 22_883 / 336,
    "joined_per_h": 14_049 / 336,
    "left_per_h": 10_573 / 336,
    "ratio": 0.086,
    "eq_nodes": 407.0,
    "node_hours": 137_639.0,
    "short_share": 0.58,  # of the fragments are shorter than ten minutes ...
    "short_time": 0.10,  # ... and hold so much of the idle node time
}

# Figure 7 and section 5.1.1.
PREEMPTED_SHARE, PREEMPTED_AT_S = 0.90, 170.0
EQUAL_SHARE_COST_PER_EVENT = 1.03e6
EQUAL_SHARE_COST_RATIO = 76.0  # to the MILP at a T_fwd of 10 s

# Figures 9 and 10, section 5.1.2.
SATURATED_AT_S = 120.0
U_MILP, U_EQUAL_SHARE = 0.80, 0.75
BEST_WINDOWS, BEST_WINDOW_U = 3, 0.90
MOST_ABOVE_EQUAL_SHARE = 0.32
PER_EVENT = {"worse": 0.069, "twice": 0.11, "five_times": 0.03, "mean": 2.9}

# Figure 12, section 5.2.1: run time of DenseNet over that of AlexNet, throughput as the objective.
RUNTIME_RATIO_MEAN, RUNTIME_RATIO_MOST = 40.0, 70.0

# Figure 14, section 5.3.
PJ_MAX = (5, 10, 15, 20, 25, 30, 35)
NODE_HOURS_CHANGE, RUNTIME_CHANGE = -0.28, 4.42
UNOCCUPIED = {5: 0.124, 10: 0.021}

# Mean run time in hours by pj_max.
TABLE_3 = {
    "AlexNet": (0.5, 0.6, 0.5, 0.6, 0.5, 0.5, 0.6),
    "ResNet18": (0.4, 0.4, 0.4, 0.4, 0.5, 0.5, 0.5),
    "MnasNet": (0.7, 0.7, 0.8, 0.8, 0.9, 0.9, 1.1),
    "MobileNets": (0.8, 0.9, 0.8, 0.9, 1.0, 1.2, 1.4),
    "ShuffleNet": (0.9, 1.0, 0.9, 1.2, 1.4, 1.6, 1.8),
    "VGG-16": (2.3, 3.4, 4.1, 5.4, 6.1, 6.3, 7.4),
    "DenseNet": (4.1, 9.5, 16.1, 22.4, 29.2, 36.3, 42.3),
}
TABLE_4 = {
    "VGG-16": (1.98, 2.8, 3.3, 3.8, 4.5, 5.0, 5.2),
    "DenseNet": (2.58, 3.4, 4.6, 5.2, 6.4, 6.5, 7.8),
    "ResNet18": (0.77, 1.1, 1.5, 1.9, 2.1, 2.4, 2.6),
    "MobileNets": (0.89, 1.8, 2.7, 3.8, 4.7, 5.9, 7.4),
    "ShuffleNet": (1.15, 2.1, 2.9, 4.2, 5.4, 7.2, 8.5),
    "MnasNet": (1.15, 2.3, 3.8, 5.5, 7.0, 9.4, 10.7),
    "AlexNet": (0.94, 2.4, 3.9, 5.3, 6.8, 7.6, 8.8),
}
# The networks as the lists of trainers name them, in the order of Figure 15: less scalable ones first.
KINDS = {
    "AlexNet": "AlexNet",
    "ResNet18": "resnet18",
    "MnasNet": "mnasnet1",
    "MobileNets": "mobilenet",
    "ShuffleNet": "shufflenet",
    "VGG-16": "vgg16",
    "DenseNet": "DenseNet",
}

# Figure 15, section 5.4.1.
U_BY_NETWORK = {"AlexNet": 0.75, "DenseNet": 0.83}
FIGURE_15_HOURS = 60.0
