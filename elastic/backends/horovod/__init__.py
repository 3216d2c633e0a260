"""Elastic Horovod as a back-end: workers hold a common state, and a change of nodes stalls them for less than a second.

driver        beside the trainer, in bftd's Python: which nodes, and what an exit means; alive: which workers there are
life          beside the driver, in the user's Python: one life of Horovod's own driver
rendezvous    in a life: where gloo's ranks find each other; announcement: how a worker tells there where it is notified
node          on a pool node: forks the workers; environment: what these find in theirs
script        in a worker: what `import elastic.horovod` brings; sockets: how a hung collective is broken;
               stuck: what is done where NCCL stays in one; generations: states by path
"""

from __future__ import annotations

from elastic.backends.kind import NOT_TORCH, Kind

KIND = Kind(
    name="horovod",
    driver="elastic.backends.horovod.driver:HorovodBackend",
    node="elastic.backends.horovod.node:HorovodNode",
    preload="elastic.backends.horovod.node:preload",
    library="torch",
    rank_variable="HOROVOD_RANK",
    asked_for=r"^\s*(?:import|from)\s+(?:elastic\.)?horovod\b",
    refused=NOT_TORCH,
    interface_variables=("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    # Neither Horovod's rendezvous server nor its clients know another one.
    ipv4_only=True,
    # A survivor of a lost node logs an error for each; what it means, the driver says.
    defaults={"HOROVOD_LOG_LEVEL": "fatal"},
    # Commits stay in the workers' memory.
    ships_in_background=True,
    # How a worker that Horovod removed ends; it is what a revocation looks like.
    noise=r"terminate called after throwing|has been removed from elastic job",
)
