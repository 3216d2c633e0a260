"""`make demo`: the main job on a private cluster, with real Slurm, Horovod and torch, in under four minutes.

The cluster has Slurm's own settings but for the partitions and preemption that bftd needs: nothing makes its scheduler
faster, so that a regular job may wait three seconds (batch_sched_delay) before it is looked at, with pilots or without.
First a stream of regular jobs runs alone, then again while bftd harvests what it leaves for two elastic trainers. The
summary goes to demo-summary.json and a picture of what each node did to demo-nodes.svg; the exit code is 1 when
something in the summary is not as it should be.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bftd.base.errors import BftError
from bftd.cli.admin.sandbox_site import SandboxSite
from bftd.simulation.report import canvas, timeline
from examples.regular_jobs import RegularJob, median_delay_s, stream
from slurm_plugin.nodeset import expand

HERE = Path(__file__).resolve().parent
SUMMARY = HERE.parent / "demo-summary.json"
PICTURE = HERE.parent / "demo-nodes.svg"
LOGS = HERE.parent / ".demo"

NODES = 4
# They end in the quiet after the last regular job: the one that ends last has all nodes for a while.
STEPS = {"horovod": 1280, "torchrun": 1330}
COMMIT_EVERY = 5
WARM_UP_S = 24.0
# It takes under four minutes where the machine is its own. One that is busy with other work only takes longer.
END_S = 480.0

# The pool shrinks, shrinks, grows, falls to zero (4 nodes), comes back and shrinks again, 20 s or more between.
JOBS = (
    RegularJob(20.0, 1, 40.0),
    RegularJob(40.0, 1, 20.0),
    RegularJob(84.0, 4, 4.0),
    RegularJob(126.0, 2, 20.0),
)

# Alone, nothing has to train in between: what is measured is how long Slurm takes to start each on idle nodes. Closer
# together they wait for each other: Slurm looks at the end of one up to 3 s later, and for the next 3 s at none.
ALONE = tuple(replace(job, at_s=7.0 * place, run_s=1.0) for place, job in enumerate(JOBS))

ALLOWED_DELAY_S = 1.0
# Slurm looks at a batch job up to 3 s after its submission (batch_sched_delay), by chance: alone, the median of these
# jobs was 0.2 to 1.3 s in six runs. Less than what is to be expected is luck, and nothing to compare with.
EXPECTED_DELAY_S = 1.5
ALLOWED_UNHELD_SHARE = 0.2
# What the daemon counts: all node-seconds that trainers could have, those that they held, and what was done with these.
COUNTED = ("pool", "held", "training", "starting", "resizing")


class Demo:
    """One run; `totals` are the daemon's node-seconds while a trainer could use a node that it did not have."""

    def __init__(self, site: SandboxSite, began_s: float) -> None:
        self._site = site
        self._began_s = began_s
        self._show: Any = lambda status: None
        self._before: dict[str, float] = {}
        self.totals: dict[str, float] = {}
        self.submitted_s = began_s

    def look(self) -> dict[str, Any]:
        """Reads the daemon's status, shows it, and keeps the totals while a trainer wants nodes."""
        status = self._site.client.status()
        self._show(status)
        wanting = [t for t in status["trainers"] if t["state"] != "finished" and t["observed"] < t["nodes_max"]]
        if wanting:
            counted = {key: status[key] for key in (f"{what}_node_seconds" for what in COUNTED)}
            self._before = self._before or counted
            self.totals = {key: counted[key] - self._before[key] for key in counted}
        return status

    def harvest(self) -> list[dict[str, Any]]:
        """Submits two trainers, runs the stream beside them and waits for their end; returns the stream's rows."""
        self.submitted_s = time.time()
        with live_view() as self._show:
            for backend in ("horovod", "torchrun"):
                words = [f"--elastic=1-{NODES},backend={backend}", f"--job-name={backend}", f"--output={backend}.log"]
                script = [str(HERE / f"train_{backend}.py"), f"--steps={STEPS[backend]}"]
                submitted = self._site.bft("sbatch", *words, *script)
                if submitted.returncode:
                    raise BftError(submitted.stderr.strip())
                self.look()
            self._warm_up()
            rows = stream(self._site, JOBS, self.look)
            while not self._over():
                time.sleep(0.25)
        return rows

    def _warm_up(self) -> None:
        """Waits until every node trains: before that, there is nothing to give back."""
        deadline = time.time() + WARM_UP_S
        while time.time() < deadline:
            status = self.look()
            if sum(node["lease_state"] == "working" for node in status["nodes"]) == NODES:
                return
            time.sleep(0.25)

    def _over(self) -> bool:
        if time.time() - self._began_s > END_S:
            raise BftError(f"the trainers did not end within {END_S:g} s of the demo's start; see {LOGS}")
        trainers = self.look()["trainers"]
        return len(trainers) == 2 and all(trainer["state"] == "finished" for trainer in trainers)


@contextmanager
def live_view() -> Iterator[Any]:
    """A function that shows a status: as a picture on a terminal, else as the sentences that are new in it."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        from rich.live import Live

        from bftd.ui.status import render

        with Live(console=console, auto_refresh=False) as live:
            yield lambda status: live.update(render(status), refresh=True)
        return
    told: set[tuple[float, str]] = set()

    def tell(status: dict[str, Any]) -> None:
        for decision in sorted(status["decisions"], key=lambda decision: decision["at_s"]):
            key = (decision["at_s"], decision["text"])
            if key not in told:
                told.add(key)
                print(time.strftime("%H:%M:%S", time.localtime(decision["at_s"])), decision["text"], flush=True)

    yield tell


def summarize(
    site: SandboxSite, demo: Demo, baseline: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The summary that is written."""
    status = site.client.status()
    events = _events(site)
    finished = {event["trainer"]: event["data"] for event in events if event["kind"] == "finished"}
    trainers = []
    for trainer in sorted(status["trainers"], key=lambda trainer: trainer["name"]):
        told = finished.get(trainer["id"], {}).get("summary", {})
        trainers.append(
            {
                "name": trainer["name"],
                "backend": trainer["backend"],
                "resizes": told.get("resizes"),
                "suspends": told.get("suspends"),
                "steps": told.get("step"),
                "steps_lost": told.get("steps_lost"),
                "samples": told.get("samples"),
                "first_loss": told.get("first_loss"),
                "last_loss": told.get("last_loss"),
                "exit_code": trainer["exit_code"],
            }
        )
    leaked = site.slurm("squeue", "-h", "-n", "bft-pilot", "-o", "%i").split()
    return {
        "regular_jobs": list(rows),
        "regular_jobs_baseline_delay_s": median_delay_s(baseline),
        "trainers": trainers,
        "give_back_s": {key: status["give_back_s"][key] for key in ("p50", "p99", "max")},
        **demo.totals,
        "start_s": starts(events),
        "leaked_pilots": len(leaked),
    }


def starts(events: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Medians of how long leases took: from the grant to the pilot, its node's import of torch, to the first step."""
    reached: dict[str, dict[str, float]] = {}
    for event in events:
        state = event["data"].get("state") if event["kind"] == "lease" else event["kind"]
        if state in ("granted", "placed", "ready", "working") and event["data"].get("lease"):
            reached.setdefault(event["data"]["lease"], {}).setdefault(state, event["at_s"])
    found = {}
    for name, since, until in (
        ("placing", "granted", "placed"),
        ("importing", "placed", "ready"),
        ("joining", "ready", "working"),
    ):
        took_s = [at_s[until] - at_s[since] for at_s in reached.values() if since in at_s and until in at_s]
        found[name] = statistics.median(took_s) if took_s else None
    return found


def draw(site: SandboxSite, begin_s: float, rows: Sequence[dict[str, Any]]) -> bytes:
    """The picture of what each node did: pilots by the daemon's ledger, regular jobs by Slurm's record and their own.

    Slurm tells which nodes a job had; when it began and ended, which Slurm records in whole seconds, the job itself.
    """
    names = {trainer["id"]: trainer["name"] for trainer in site.client.status()["trainers"]}
    events = _events(site)
    end_s = max(event["at_s"] for event in events if event["kind"] == "finished")
    spans = timeline.held(events, names, end_s)
    for row in rows:
        ended = site.work / f"ended-{row['id']}"
        if row["start_s"] is None or not ended.exists():
            continue
        record = dict(
            item.partition("=")[::2] for item in site.slurm("scontrol", "show", "job", "-o", row["id"]).split()
        )
        for node in expand(record["NodeList"]):
            spans.append(timeline.Span(node, row["start_s"], ended.stat().st_mtime, "regular", row["id"]))
    title = f"Two elastic trainers on what regular jobs leave of {NODES} nodes"
    return timeline.picture(title, spans, site.cluster.node_names, begin_s, end_s)


def faults(summary: dict[str, Any], baseline: Sequence[dict[str, Any]]) -> list[str]:
    """What in a summary is not as it should be, a sentence each."""
    found = []
    rows = summary["regular_jobs"]
    if any(row["delay_s"] is None for row in [*rows, *baseline]):
        found.append("a regular job did not start")
    else:
        delay_s = median_delay_s(rows)
        alone_s = max(summary["regular_jobs_baseline_delay_s"], EXPECTED_DELAY_S)
        if delay_s is None or delay_s - alone_s > ALLOWED_DELAY_S:
            found.append(f"regular jobs waited more than {ALLOWED_DELAY_S:g} s longer than without harvesting (median)")
    if len(summary["trainers"]) != 2:
        found.append("not two trainers took part")
    for trainer in summary["trainers"]:
        found += [f"{trainer['name']}: {fault}" for fault in _trainer_faults(trainer)]
    if summary["leaked_pilots"]:
        found.append(f"{summary['leaked_pilots']} pilots were left behind")
    pool_s, held_s = summary.get("pool_node_seconds", 0.0), summary.get("held_node_seconds", 0.0)
    if pool_s <= 0 or (pool_s - held_s) / pool_s > ALLOWED_UNHELD_SHARE:
        found.append(f"trainers that could have used it did not hold {ALLOWED_UNHELD_SHARE:.0%} of the pool")
    return found


def _trainer_faults(trainer: dict[str, Any]) -> Iterator[str]:
    if trainer["exit_code"] != 0:
        yield f"exit code {trainer['exit_code']}"
    if not trainer["resizes"]:
        yield "was never resized"
    if not trainer["suspends"]:
        yield "was never suspended, though the pool fell to zero"
    if trainer["steps"] != (steps := STEPS[trainer["name"]]):
        yield f"made {trainer['steps']} steps of {steps}"
    first, last = trainer["first_loss"], trainer["last_loss"]
    if first is None or last is None or last >= first:
        yield f"its loss did not fall ({first} to {last})"
    lost = trainer["steps_lost"]
    # Each regular job may cost at most the steps since the last commit.
    if lost is None or lost > COMMIT_EVERY * (len(JOBS) + 1):
        yield f"lost {lost} steps"


def _events(site: SandboxSite) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while batch := site.client.events(after=events[-1]["rowid"] if events else 0):
        events += batch
    return events


def _keep_logs(site: SandboxSite) -> None:
    LOGS.mkdir(exist_ok=True)
    for log in [site.log_path, *site.work.glob("*.log")]:
        if log.exists():
            shutil.copy(log, LOGS / log.name)


def main() -> int:
    """Runs the demo; returns the exit code."""
    canvas.version()  # what draws the picture is there: said before minutes of work
    began_s = time.time()
    # As for Ctrl-C: the context managers end what was started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for written in (SUMMARY, PICTURE):
        written.unlink(missing_ok=True)
    with SandboxSite(nodes=NODES) as site:
        try:
            print(
                f"demo: {NODES} nodes, with Slurm's own scheduling; first the regular jobs alone, for comparison",
                flush=True,
            )
            baseline = stream(site, ALONE, lambda: None)
            print("demo: now with bftd and two elastic trainers", flush=True)
            site.start_daemon()
            demo = Demo(site, began_s)
            rows = demo.harvest()
            summary = summarize(site, demo, baseline, rows)
            PICTURE.write_bytes(draw(site, demo.submitted_s, rows))
        finally:
            _keep_logs(site)
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n")
    found = faults(summary, baseline)
    _print(summary, time.time() - began_s)
    for fault in found:
        print(f"demo: FAILED: {fault}; logs are in {LOGS.name}/", file=sys.stderr)
    return 1 if found else 0


def _print(summary: dict[str, Any], took_s: float) -> None:
    base_s, delay_s = summary["regular_jobs_baseline_delay_s"], median_delay_s(summary["regular_jobs"])
    print(f"demo: {len(summary['regular_jobs'])} regular jobs, median delay {delay_s:.2f} s (alone {base_s:.2f} s)")
    for trainer in summary["trainers"]:
        print(
            f"demo: {trainer['name']}: {trainer['steps']} steps, {trainer['resizes']} resizes, "
            f"{trainer['suspends']} suspends, {trainer['steps_lost']} steps lost, "
            f"loss {trainer['first_loss']:.2f} -> {trainer['last_loss']:.2f}, exit code {trainer['exit_code']}"
        )
    shares = {what: summary[f"{what}_node_seconds"] / summary["pool_node_seconds"] for what in COUNTED}
    print(
        "demo: of the idle node-seconds {training:.0%} trained and {held:.0%} were held, "
        "{starting:.0%} starting and {resizing:.0%} at resizes".format(**shares)
    )
    spent = ", ".join(f"{name} {took:.1f} s" for name, took in summary["start_s"].items() if took is not None)
    print(f"demo: the start of a node, medians: {spent}")
    print(f"demo: {SUMMARY.name} is written after {took_s:.0f} s")
    print(f"demo: what each node did: {PICTURE}")


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if getattr(error, "exit_code", None) is None:
            raise
        print(f"demo: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)
