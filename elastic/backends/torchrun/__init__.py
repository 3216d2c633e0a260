"""torchrun as a back-end: a change of nodes restarts all workers, from a checkpoint.

    driver         beside the trainer, in bftd's Python: generations, their members and ranks
    blame          the cause of a crash
    store          beside the driver, in the user's Python: the store of each generation, which is a
    private_store  that no other user of that host can reach, so the only way to it is a
    tunnel         on a pool node, from the workers to the store, over authenticated connections
    node           on a pool node: the workers of each generation, with the ranks that the driver gives

A script's calls are those of `elastic` itself (elastic.script.api): they need only RANK and WORLD_SIZE.
"""

from __future__ import annotations

from elastic.backends.kind import NOT_TORCH, Kind

KIND = Kind(
    name="torchrun",
    driver="elastic.backends.torchrun.driver:TorchrunBackend",
    node="elastic.backends.torchrun.node:TorchrunNode",
    preload="elastic.backends.torchrun.node:preload",
    library="torch",
    rank_variable="RANK",
    refused=NOT_TORCH,
    interface_variables=("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    defaults={
        # gloo then asks the store for all addresses at once, not three times a peer: 200,000 times among 256 workers.
        "GLOO_ENABLE_STORE_V2_API": "1",
        # Without this, each worker asks the store once a second whether a peer wants its flight recorder written, and
        # one that lost a peer waits up to 15 s for that before it ends, for a file on a node that is given back.
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    },
    saves_together=True,
    # The last lines of a process whose peers were taken away.
    noise=r"terminate called after throwing|ProcessGroupNCCL\.cpp:\d+\]",
)
