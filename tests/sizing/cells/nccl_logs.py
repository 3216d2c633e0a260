"""Outputs of nccl-tests in the forms of several versions, with figures of our own."""

from __future__ import annotations

from collections.abc import Sequence


def rank_lines(hosts: Sequence[str], per_node: int, gpu: str = "NVIDIA H100 80GB HBM3", group: bool = True) -> str:
    """The list of devices, one process a GPU."""
    lines = []
    for rank in range(len(hosts) * per_node):
        said = " Group  0" if group else ""
        host, device = hosts[rank // per_node], rank % per_node
        lines.append(f"#  Rank {rank:2}{said} Pid {1887 + rank:6} on {host:>10} device {device:2} [0x8d] {gpu}\n")
    return "#\n# Using devices\n" + "".join(lines) + "#\n"


def row(words: str) -> str:
    """One size, in columns as wide as they are printed."""
    size, count, kind, redop, root, *rest = words.split()
    widths = (7, 6, 6, 6, 7, 6, 6, 6)
    cells = "".join(f" {each:>{width}}" for each, width in zip(rest, widths, strict=True))
    return f"{size:>12}  {count:>12}  {kind:>8}  {redop:>6}  {root:>6}{cells}\n"


BEGINS = "# nThread 1 nGpus 1 minBytes 1024 maxBytes 4194304 step: 4(factor) warmup iters: 5 iters: 20"

_TITLES = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
_ENDS = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.14\n#\n"

NAMED = (
    "# nccl-tests version 2.18.3 nccl-headers=22907 nccl-library=22907\n"
    "# Collective test starting: all_gather_perf\n"
    f"{BEGINS} agg iters: 1 validation: 1 graph: 0 unalign: 0\n"
    + rank_lines(["gpu-1", "gpu-2"], 4, "NVIDIA A100-SXM4-80GB").replace("[0x8d]", "[0000:8d:00]")
    + _TITLES
    + row("0 0 float none -1 9.10 0.00 0.00 0 8.90 0.00 0.00 0")
    + row("1024 32 float none -1 20.00 0.05 0.04 0 19.00 0.05 0.04 0")
    + row("1048576 32768 float none -1 100.00 10.49 9.18 0 99.00 10.59 9.27 N/A")
    + row("1048576 32768 float none -1 120.00 8.74 7.65 0 99.00 10.59 9.27 N/A")
    + row("1048576 32768 float none -1 140.00 7.49 6.55 0 99.00 10.59 9.27 N/A")
    + row("16777216 524288 float none -1 1.3e+03 12.91 11.29 0 1290.0 13.00 11.38 0")
    + _ENDS
    + "# Collective test concluded: all_gather_perf\n"
)
"""As the newest print it: the program's name before and after, bus addresses in full; sizes may come up again."""

OLD = (
    "# nThread 1 nGpus 4 minBytes 1024 maxBytes 4194304 step: 4(factor) warmup iters: 5 iters: 20 validation: 1\n"
    + rank_lines(["dgx"], 4, "Tesla V100-SXM2-32GB", group=False)
    + """\
#                                               out-of-place                       in-place
#       size         count      type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float    30.00    0.03    0.03  0e+00    31.00    0.03    0.03  3e+02
     4194304       1048576     float    400.0   10.49   10.49  0e+00    410.0   10.23   10.23    N/A
# Out of bounds values : 0 OK
"""
)
"""As the oldest printed it: no groups, no reduction or root where there is none, an error in place of wrong values."""

UNNAMED = (
    f"{BEGINS} agg iters: 1 validation: 1 graph: 0\n"
    + rank_lines(["n1"], 2)
    + _TITLES
    + row("1024 256 float sum -1 25.00 0.04 0.04 0 24.00 0.04 0.04 0")
    + row("4194304 1048576 float sum -1 200.00 20.97 20.97 0 199.00 21.08 21.08 0")
    + _ENDS
)
"""Between them: the same without a name."""
