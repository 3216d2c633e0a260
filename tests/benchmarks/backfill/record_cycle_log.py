"""Record what this machine's slurmctld tells of its backfill cycles, as an asset for the reader's tests.

    python -m tests.benchmarks.backfill.record_cycle_log > tests/benchmarks/backfill/assets/backfill-22.05.log

Another release than the machine's: tools/slurm_root.sh SUITE, with the same command. Nothing of this machine gets in.
"""

from __future__ import annotations

import sys
import time

from benchmarks.backfill.cycle_log import cycles
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.sandbox import Sandbox

_EVERY_S = 3
# In the second half backfill gives its locks up at each job, and the main scheduler works meanwhile.
_YIELD = "bf_yield_interval=1,bf_yield_sleep=200000"
_CONF = f"""\
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval={_EVERY_S},bf_continue
KillWait=2
MinJobAge=3600
DebugFlags=Backfill,BackfillMap,HetJob
SlurmctldDebug=verbose
"""
_MOST_S = 90.0


def main() -> None:
    """Record both halves, one cluster each."""
    for conf in (_CONF, _CONF.replace("bf_continue", f"bf_continue,{_YIELD}")):
        with Sandbox(nodes=4, tuned=False, extra_conf=conf) as sandbox:
            _play(sandbox.client())
            log = (sandbox.root / "log" / "slurmctld.log").read_text()
            sys.stdout.write("".join(f"{line}\n" for line in log.splitlines() if _wanted(line)))
            if not any(cycle.failed for cycle in cycles(log.splitlines())):
                sys.exit("backfill preempted nothing: run it again")


def _wanted(line: str) -> bool:
    return any(word in line for word in ("backfill: ", "to reclaim resources", "sched: Allocate"))


def _play(client: SlurmClient) -> None:
    """Two jobs hold half of the nodes and pilots the others; a large job waits, and small ones fit in front of it."""
    run = "#!/bin/sh\nsleep {}\n"
    client.submit(["--output=/dev/null", "--nodes=2", "--nodelist=n[1-2]", "--time=3"], run.format(25))
    _until(client, "1", "RUNNING")
    for node in ("n3", "n4"):
        client.run("salloc", "--immediate=1", "--no-shell", "--partition=elastic", f"--nodelist={node}", "--time=30")
    client.submit(["--output=/dev/null", "--nodes=4", "--time=2"], run.format(5))
    client.submit(["--output=/dev/null", "--nodes=1", "--time=1"], run.format(5))
    client.submit(["--output=/dev/null", "--nodes=1", "--time=1", "--array=1-2"], run.format(5))
    last = client.submit(["--output=/dev/null", "--nodes=1", "--time=5"], run.format(1))
    _until(client, last, "COMPLETED")


def _until(client: SlurmClient, id_: str, state: str) -> None:
    deadline = time.monotonic() + _MOST_S
    while f"JobState={state}" not in client.run("scontrol", "show", "job", id_, "-o").out:
        if time.monotonic() > deadline:
            sys.exit(f"job {id_} is not {state}: run it again")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
