"""torch.distributed.elastic as a back-end: a change of nodes restarts all workers, from the state that was saved.

    driver  beside the trainer, in bftd's Python: generations, their members and ranks
    store   beside the driver, in the user's Python: the store of each generation
    node    on a pool node: torch's own agent, with the driver as its rendezvous

A script's calls are those of `elastic` itself (elastic.api): they ask for no more than RANK and WORLD_SIZE.
"""

from __future__ import annotations

from elastic.backends.kind import Kind

KIND = Kind(
    name="torchrun",
    driver="elastic.backends.torchrun.driver:TorchrunBackend",
    node="elastic.backends.torchrun.node:TorchrunNode",
    preload="elastic.backends.torchrun.node:preload",
    library="torch",
    rank_variable="RANK",
    interface_variables=("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    saves_together=True,
    # How a process ends whose peers were taken away.
    noise=r"terminate called after throwing",
)
