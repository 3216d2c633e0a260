"""Record what this machine's Slurm prints, as assets for the parser's tests.

Run it again (with PYTHONPATH=.) for a new Slurm release: it writes a new folder named after it. Nothing of this machine
gets in. Another release than the machine's: tools/slurm_root.sh SUITE, with a command that also brings the folder out.
"""

from __future__ import annotations

import getpass
import socket
import subprocess
import time
from pathlib import Path

from slurm_plugin import parse, reservation
from slurm_plugin.client import SlurmClient
from slurm_plugin.sandbox import Sandbox

SEPARATOR = "\x1f5e9a17"
ASSETS = Path(__file__).parent / "assets"


def main() -> None:
    """Build a cluster with a bit of everything in it and save the answers of the commands the client calls."""
    with Sandbox(nodes=6, gpus={"a100": 4, "v100": 2}) as sandbox:
        client = sandbox.client()
        client.run("scontrol", "delete", f"ReservationName={reservation.NAME}")  # which newer releases need
        release = client.run("scontrol", "--version").out.split()[1].rsplit(".", 1)[0]
        folder = ASSETS / release
        folder.mkdir(parents=True, exist_ok=True)
        queue = ("squeue", f"--format={parse.job_format(SEPARATOR)}")
        _save(folder / "reservations-none.txt", sandbox, client, "scontrol", "show", "reservation", "-o")
        _save(folder / "jobs-none.txt", sandbox, client, *queue)
        _fill(client)
        _save(folder / "nodes.txt", sandbox, client, "scontrol", "show", "nodes", "-o")
        _save(folder / "jobs.txt", sandbox, client, *queue)
        _save(folder / "reservations.txt", sandbox, client, "scontrol", "show", "reservation", "-o")
        _save(folder / "partitions.txt", sandbox, client, "scontrol", "show", "partition", "-o")


def _fill(client: SlurmClient) -> None:
    sleep = "#!/bin/sh\nsleep 100\n"

    def submit(*options: str) -> str:
        return client.submit(["--output=/dev/null", "--time=3", *options], sleep)

    running = submit(
        *("--nodes=2", "--nodelist=n[1-2]", "--account=physics", "--job-name=a | b\x1f c", "--comment=two\nlines = odd")
    )
    submit("--nodes=1", "--partition=bft-driver", "--ntasks=1", "--time=1-02:03:04")
    _wait_running(client, running)
    for node, state, reason in (("n5", "drain", "bad disk State=IDLE"), ("n6", "down", "no power")):
        client.run("scontrol", "update", f"nodename={node}", f"state={state}", f"reason={reason}")
    submit("--nodes=4", "--nodelist=n[1-4]", "--time=2:00:00")
    submit("--array=1-5%2", "--partition=bft-driver", f"--dependency=afterok:{running}", "--ntasks=1")
    submit("--hold", "--partition=batch,elastic")
    submit("--begin=now+3600")
    client.run(
        *("scontrol", "create", "reservation", "reservationname=repair", "starttime=now+7200", "duration=60"),
        *("nodes=n[1,3]", "user=root", "flags=maint,ignore_jobs"),
    )
    time.sleep(3)  # the scheduler plans once a second


def _wait_running(client: SlurmClient, job_id: str) -> None:
    while (job := client.job(job_id)) is None or job.state != "RUNNING":
        time.sleep(0.1)


def _save(path: Path, sandbox: Sandbox, client: SlurmClient, command: str, *arguments: str) -> None:
    text = client.run(command, *arguments).out
    kernel = subprocess.run(["uname", "-rv"], capture_output=True, text=True, check=True).stdout.strip()
    for private, public in (
        (str(sandbox.root), "/sandbox"),
        (f"NodeHostName={socket.gethostname().split('.')[0]}", "NodeHostName=host"),
        (kernel, "6.1.0 #1 SMP"),
        (getpass.getuser(), "alice"),
    ):
        text = text.replace(private, public)
    path.write_text(text, newline="")


if __name__ == "__main__":
    main()
