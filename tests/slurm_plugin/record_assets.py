"""Record what this machine's Slurm prints, as assets for the parser's tests.

Run it again (with PYTHONPATH=.) for a new Slurm release: it writes a new folder named after it, below BFTD_ASSETS where
that is set. With the words `cluster`, `queue`, `requests` or `expedited` it records only that: a cluster with a bit of
everything, the queue of arrays, what jobs ask for, and an expedited requeue, which releases before 25.11 do not have.
Nothing of this machine gets in. Another release than the machine's:
tools/slurm_root.sh SUITE, with a command that also brings the folder out.
"""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.pilots import reservation
from slurm_plugin.read import parse, scontrol_requests
from slurm_plugin.sandbox import Sandbox

SEPARATOR = "\x1f5e9a17"
ASSETS = Path(__file__).parent / "assets"
_QUICK = ("--output=/dev/null", "--time=3")
_ROOMY = "--partition=bft-driver"  # where jobs share a node
REQUESTS = (
    ("--nodes=2",),
    ("--nodes=2", "--constraint=ib&fast"),
    ("--nodes=2", "--constraint=[fast|old]"),
    ("--nodes=3", "--nodelist=n[1-2]", "--exclude=n[4,6]", "--contiguous"),
    ("--ntasks=12",),
    (_ROOMY, "--ntasks=3", "--cpus-per-task=4", "--mem-per-cpu=100M"),
    (_ROOMY, "--ntasks=1", "--mem=2G", "--mincpus=8"),
    (_ROOMY, "--ntasks=1", "--exclusive"),
    (_ROOMY, "--ntasks=1", "--oversubscribe"),
    (_ROOMY, "--ntasks=1", "--exclusive=user"),
    ("--nodes=1", "--gres=gpu:a100:2"),
    ("--nodes=1", "--time=2:00:00", "--time-min=1:30:00"),
    ("--nodes=2", "--switches=1@10:00"),
    ("--nodes=1", ":", "--nodes=2", "--hold", "--time=3", "--constraint=old"),
    ("--nodes=1", "--array=1-5", "--time-min=1"),
    ("--nodes=1", "--mem=1536M"),
)
"""What jobs ask for; they are held in this order, after two that run."""


def main() -> None:
    """Record a cluster with a bit of everything on it, a queue of job arrays, and one of all kinds of requests."""
    only = sys.argv[1:]
    records = {
        "cluster": record_cluster,
        "queue": record_queue,
        "requests": record_requests,
        "expedited": record_expedited,
    }
    for word, record in records.items():
        if not only or word in only:
            record()


def record_cluster() -> None:
    """Build a cluster with a bit of everything in it and save the answers of the commands the client calls."""
    with Sandbox(nodes=6, gpus={"a100": 4, "v100": 2}, tuned=True) as sandbox:
        client = sandbox.client()
        client.run("scontrol", "delete", f"ReservationName={reservation.NAME}")  # which newer releases need
        folder = _folder(client)
        queue = ("squeue", f"--format={parse.job_format(SEPARATOR)}")
        _save(folder / "reservations-none.txt", sandbox, client, "scontrol", "show", "reservation", "-o")
        _save(folder / "jobs-none.txt", sandbox, client, *queue)
        _fill(client)
        _save(folder / "nodes.txt", sandbox, client, "scontrol", "show", "nodes", "-o")
        _save(folder / "jobs.txt", sandbox, client, *queue)
        _save(folder / "reservations.txt", sandbox, client, "scontrol", "show", "reservation", "-o")
        _save(folder / "partitions.txt", sandbox, client, "scontrol", "show", "partition", "-o")


def record_queue() -> None:
    """Save a queue of irregular job arrays, as the client reads it and as squeue cuts it on its own.

    There are free texts that look like fields, too, as far as the release has them.
    """
    with Sandbox(nodes=4, tuned=True) as sandbox:
        client = sandbox.client()
        client.run("scontrol", "delete", f"ReservationName={reservation.NAME}")
        folder = _folder(client)
        _queue(client)
        argv = ["squeue", f"--format={parse.job_format(SEPARATOR)}", "--all", "--local"]
        _save(folder / "queue.txt", sandbox, client, *argv)
        cutting = {key: value for key, value in client.environ().items() if key != "SLURM_BITSTR_LEN"}
        argv[0] = client.path(argv[0])
        cut = subprocess.run(argv, env=cutting, capture_output=True, check=True).stdout.decode()
        (folder / "queue-cut.txt").write_text(_public(cut, sandbox), newline="")
        client.run("scontrol", "update", "nodename=n1", "comment=was State=DOWN CPUTot=many")
        client.run(
            *("scontrol", "create", "reservation", "reservationname=repair", "starttime=now+7200", "duration=60"),
            *("nodes=n1", "user=root", "flags=maint,ignore_jobs"),
        )
        client.run("scontrol", "update", "reservationname=repair", "comment=see Nodes=n2 EndTime=soon")
        _save(folder / "nodes-text.txt", sandbox, client, "scontrol", "show", "nodes", "-o")
        _save(folder / "reservations-text.txt", sandbox, client, "scontrol", "show", "reservation", "-o")


def record_requests() -> None:
    """Save a queue of held jobs, each of which asks for something else, and a node that two of them share."""
    with Sandbox(nodes=6, gpus={"a100": 4}) as sandbox:
        client = sandbox.client()
        client.run("scontrol", "delete", f"ReservationName={reservation.NAME}")
        folder = _folder(client)
        client.run("scontrol", "update", "nodename=n1", "weight=5")
        for nodes, features in (("n[1-3]", "ib,fast"), ("n[4-6]", "ib,old")):
            client.run("scontrol", "update", f"nodename={nodes}", f"availablefeatures={features}")
            client.run("scontrol", "update", f"nodename={nodes}", f"activefeatures={features}")
        shared = client.submit(
            [*_QUICK, "--partition=bft-driver", "--ntasks=3", "--mem-per-cpu=100"], "#!/bin/sh\nsleep 100\n"
        )
        gpus = client.submit([*_QUICK, "--nodelist=n2", "--gres=gpu:a100:3"], "#!/bin/sh\nsleep 100\n")
        _wait_running(client, shared)
        _wait_running(client, gpus)
        for options in REQUESTS:
            client.submit([*_QUICK, "--hold", *options], "#!/bin/sh\nsleep 100\n")
        time.sleep(3)
        everywhere = ("--all", "--local")
        _save(
            folder / "requests.txt", sandbox, client, "squeue", f"--format={parse.job_format(SEPARATOR)}", *everywhere
        )
        exclusive = scontrol_requests.knows_exclusive(client.run("scontrol", "show", "partition", "-o").out)
        form = f"--Format={scontrol_requests.long_format(SEPARATOR, exclusive)}"
        _save(folder / "wishes.txt", sandbox, client, "squeue", form, "--states=PENDING", *everywhere)
        _save(folder / "nodes-shared.txt", sandbox, client, "scontrol", "show", "nodes", "-o")
        _save(folder / "nodes-details.txt", sandbox, client, "scontrol", "show", "nodes", "-o", "-d")
        _save(folder / "sdiag.txt", sandbox, client, "sdiag")


def record_expedited() -> None:
    """Save a job that failed with its node, first while an epilog runs on one of its nodes, then while it waits."""
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "epilog"
        script.write_text('#!/bin/sh\nif [ "$SLURMD_NODENAME" = n1 ]; then sleep 5; exit 1; fi\n')
        script.chmod(0o755)
        conf = f"SlurmctldParameters=enable_expedited_requeue\nEpilog={script}\n"
        with Sandbox(nodes=3, tuned=True, extra_conf=conf) as sandbox:
            if _release(sandbox.client()) >= (25, 11):
                _record_expedited(sandbox)


def _record_expedited(sandbox: Sandbox) -> None:
    client = sandbox.client()
    client.run("scontrol", "delete", f"ReservationName={reservation.NAME}")
    folder = _folder(client)
    queue = ("squeue", f"--format={parse.job_format(SEPARATOR)}", "--all", "--local")
    _wait_running(client, client.submit([*_QUICK, "--nodelist=n3"], "#!/bin/sh\nsleep 100\n"))
    failing = client.submit([*_QUICK, "--nodes=2", "--requeue=expedite"], "#!/bin/sh\nsleep 1\nexit 1\n")
    for word, state in (("ending", "COMPLETING"), ("waiting", "EXPEDITING")):
        while f" {state} " not in client.run("squeue", "--noheader", "--format= %T ", f"--jobs={failing}").out:
            time.sleep(0.1)
        time.sleep(1)  # the epilog of n2 is over, or the scheduler has looked
        _save(folder / f"expedited-{word}-nodes.txt", sandbox, client, "scontrol", "show", "nodes", "-o")
        _save(folder / f"expedited-{word}-jobs.txt", sandbox, client, *queue)


def _queue(client: SlurmClient) -> None:
    """Three nodes are busy and the fourth is down; all that waits, waits for another reason."""
    tasks = ",".join(map(str, [1, 2, 4, 8, 16, 32, 64, *range(100, 901, 100), 901, 903, 905]))

    def submit(*options: str) -> str:
        return client.submit(["--output=/dev/null", "--time=3", *options], "#!/bin/sh\nsleep 100\n")

    client.run("scontrol", "update", "nodename=n4", "state=down", "reason=no power")
    submit("--hold", f"--array={tasks}%3")
    partly = submit(f"--array={tasks}%2", "--nodelist=n1")
    submit("--nodes=2", "--nodelist=n[2-3]")
    _wait_running(client, f"{partly}_1")
    client.run("scontrol", "hold", f"{partly}_300")
    released = submit("--hold", "--array=1-9")
    client.run("scontrol", "release", f"{released}_3")
    submit(f"--array={tasks}")
    submit("--nodelist=n4")
    submit("--nodes=4")
    submit("--partition=elastic")
    time.sleep(3)  # the scheduler plans once a second


def _release(client: SlurmClient) -> tuple[int, int]:
    major, minor, *_ = client.run("scontrol", "--version").out.split()[1].split(".")
    return int(major), int(minor)


def _folder(client: SlurmClient) -> Path:
    folder = Path(os.environ.get("BFTD_ASSETS", ASSETS)) / "{}.{:02}".format(*_release(client))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
    path.write_text(_public(client.run(command, *arguments).out, sandbox), newline="")


def _public(text: str, sandbox: Sandbox) -> str:
    kernel = subprocess.run(["uname", "-rv"], capture_output=True, text=True, check=True).stdout.strip()
    for private, public in (
        (str(sandbox.root), "/sandbox"),
        (f"NodeHostName={socket.gethostname().split('.')[0]}", "NodeHostName=host"),
        (kernel, "6.1.0 #1 SMP"),
        (getpass.getuser(), "alice"),
    ):
        text = text.replace(private, public)
    return text


if __name__ == "__main__":
    main()
