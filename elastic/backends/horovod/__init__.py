"""Elastic Horovod as a back-end: workers hold a common state, and a change of nodes stalls them for less than a second.

driver        beside the trainer, in bftd's Python: the wanted nodes and the meaning of exits; workers: the live workers
elastic_run   beside the driver, in the user's Python: one run of Horovod's own driver; notifier: how workers hear of it
rendezvous    in an elastic run: gloo's ranks find each other there; notification_address: where workers are notified
node          on a pool node: forks the workers
script        in a worker: the content of `import elastic.horovod`; abort: how a hung collective is broken;
              checkpoints: distributed checkpoints
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
    # Neither Horovod's rendezvous server nor its clients support IPv6.
    ipv4_only=True,
    # Survivors of a lost node log an error for each; the driver reports what it means.
    defaults={"HOROVOD_LOG_LEVEL": "fatal"},
    # Commits stay in the workers' memory.
    uploads_in_background=True,
    # The end of a worker that Horovod removed; it is what a revocation looks like.
    noise=r"terminate called after throwing|has been removed from elastic job",
)
