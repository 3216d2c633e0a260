"""The cost of a resize with the project's Horovod back-end, in seconds, from docs/evidence/benchmarks.md.

New nodes warm up while the others continue training; then all stand still while the ring is formed anew.
"""

# Stall of a running trainer when warm workers join it.
UP_STALL_S = 0.57
# Stall of a running trainer when workers leave it.
DOWN_STALL_S = 0.19
# From the grant of an idle node to its first step: the pilot's placement, and importing torch.
WARM_UP_S = 12.8
