"""The systems that are compared: each begins on an idle cluster and trains on the nodes that it gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.impact import training as elastic_training
from benchmarks.impact.recipe import Recipe
from benchmarks.impact.site import PILOTS, Site
from benchmarks.rivals import process
from benchmarks.rivals.training import Costs, Group, groups, spells
from bftd.base.errors import BftError

TRAININGS_PER_NODE = 3
"""Trainings for jobs of one node: more than there are nodes, as Slurm holds a requeued job for two minutes."""
JOBS_PER_NODE = 8
"""Jobs of the scavenger partition: a job that reaches its time limit is not requeued, and another goes on."""
LIMIT_MIN = 60

TICK_S = 1.0
"""HyperQueue looks every 5 s whether allocations are missing: every second here, where a stream passes quickly."""
BACKLOG_PER_NODE = 1
"""The largest number of allocations that wait in Slurm's queue (`--backlog`)."""


class Trainer:
    """A harvester of `benchmarks.impact.run` whose processes train; `groups` is what they did, once it has ended."""

    by_bftd = False

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.groups: list[Group] = []

    def start(self, site: Site) -> None:
        """See Harvester."""
        raise NotImplementedError

    def lay_out(self, site: Site) -> Path:
        """Write the program and its settings into the folder for jobs; returns the elastic script."""
        for name in ("checkpoints", "spells", "workers"):
            (site.work / name).mkdir()
        count = TRAININGS_PER_NODE * len(site.cluster.node_names)
        (site.work / "training.json").write_text(json.dumps({**self._costs.told(), "trainings": count}))
        source = Path(process.__file__).read_text().replace("{", "{{").replace("}", "}}")
        return elastic_training.lay_out(site.work, program="#!{python} -IS\n" + source)

    def end(self, site: Site, begin_s: float) -> None:
        """Read what was trained."""
        read = []
        for path in (site.work / "spells").iterdir():
            alive = _is_alive(int(path.name.partition("-")[0]), site.work)
            lines = path.read_text().splitlines(keepends=True)
            # The last line may be half written.
            read += spells([line for line in lines if line.endswith("\n")], alive, begin_s)
        self.groups = groups(read)


def _is_alive(pid: int, folder: Path) -> bool:
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _options(*more: str) -> list[str]:
    """Of a job of one node that also fits in front of what is planned."""
    return [
        *("sbatch", "--parsable", f"--partition={PILOTS}", "--nodes=1", "--output=/dev/null"),
        *(f"--time={LIMIT_MIN}", "--time-min=1", *more),
    ]


class Scavenger(Trainer):
    """Jobs of one node in a partition whose jobs Slurm requeues; each resumes a training from its checkpoint."""

    def start(self, site: Site) -> None:
        """See Harvester."""
        self.lay_out(site)
        for _ in range(JOBS_PER_NODE * len(site.cluster.node_names)):
            site.slurm(*_options("--requeue", f"--wrap=exec ./{elastic_training.NAME} rigid"))


class Allocations(Trainer):
    """A stand-in for HyperQueue's automatic allocation (`hq alloc add slurm`), with a worker a node.

    So many allocations wait in Slurm's queue as the backlog says; when one starts, its worker connects and takes tasks,
    here a training that resumes from its checkpoint, and at a later tick another allocation is submitted.
    """

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, site: Site) -> None:
        """See Harvester."""
        self.lay_out(site)
        self._thread = threading.Thread(target=self._allocate, args=(site,), daemon=True)
        self._thread.start()

    def _allocate(self, site: Site) -> None:
        backlog = BACKLOG_PER_NODE * len(site.cluster.node_names)
        worker = f": > workers/$SLURM_JOB_ID; exec ./{elastic_training.NAME} rigid"
        submitted = 0
        while not self._over.wait(TICK_S):
            started = sum(1 for _ in (site.work / "workers").iterdir())
            for _ in range(backlog - (submitted - started)):
                site.slurm(*_options(f"--wrap={worker}"))
                submitted += 1

    def end(self, site: Site, begin_s: float) -> None:
        """See Harvester."""
        super().end(site, begin_s)
        assert self._thread is not None
        if not self._thread.is_alive():
            raise BftError("no more allocations were submitted: sbatch failed, see above")
        self._over.set()
        self._thread.join()


class Bftd(Trainer):
    """The daemon and the elastic trainers of the impact benchmark, which want more nodes than there are."""

    by_bftd = True

    def start(self, site: Site) -> None:
        """See Harvester."""
        script = self.lay_out(site)
        site.start_daemon()
        site.start_trainers(script)


@dataclass(frozen=True, slots=True)
class System:
    """One of those compared: how its runs are called in files and on pages, and what harvests in them."""

    name: str
    text: str
    make: Callable[[Costs], Trainer] | None
    pair: int = 0

    def recipe(self, base: Recipe) -> Recipe:
        """The site's settings: without bftd, no job gets a priority number, and a scavenger's jobs are requeued."""
        if self.make is None or self.make is Bftd:
            return base
        mode = {"PreemptMode": "REQUEUE"} if self.make is Scavenger else {}
        return replace(base, name=f"{base.name}-{self.name}", number=False, elastic=mode)


NOTHING, AGAIN = System("nothing", "Slurm alone", None), System("again", "Slurm alone, again", None, pair=1)
SYSTEMS = (
    NOTHING,
    AGAIN,
    System("scavenger", "scavenger partition, requeue", Scavenger),
    System("allocations", "automatic allocation, as HyperQueue's", Allocations),
    System("bftd", "bftd", Bftd),
)
