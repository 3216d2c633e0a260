"""Two types of GPU in one partition and CPU nodes in a second one, on a real cluster with the plug-ins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests.slurm_plugin.plugins import another_lua, require_compiled
from tests.support import waiting
from tests.support.messages import pattern, says, wording

pytestmark = pytest.mark.cluster
# No command takes so long, however busy the machine is.
PATIENCE_S = 240.0
A100, V100, CPU = {"n1", "n2"}, {"n3", "n4"}, {"svc2"}
CPU_PARTITION = (
    "PartitionName=elastic-cpu Nodes=svc2 MaxTime=60 DefaultTime=1 MaxNodes=1 State=UP PriorityTier=1 "
    "PreemptMode=CANCEL GraceTime=0 OverSubscribe=EXCLUSIVE"
)
SCRIPT = "#!/usr/bin/env python3\nimport time\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def site() -> Iterator[SandboxSite]:
    """Its drivers run on svc1, and svc2 is harvested too."""
    require_compiled()
    config = {"slurm": {"partitions": ["elastic", "elastic-cpu"], "poll_s": 0.5}}
    shape = {"nodes": 4, "service_nodes": 2, "gpus": {"a100": 2, "v100": 1}, "extra_conf": CPU_PARTITION}
    with SandboxSite(config, plugins=True, tuned=True, **shape) as site:
        for node in V100:
            site.slurm("scontrol", "update", f"nodename={node}", "availablefeatures=ib", "activefeatures=ib")
        site.slurm("scontrol", "update", "partitionname=bft-driver", "nodes=svc1")
        site.start_daemon()
        (site.work / "train.py").write_text(SCRIPT)
        (site.work / "inside.py").write_text(SCRIPT.replace("import", "#SBATCH -C ib\nimport", 1))

        def both(text: str) -> str:
            return text.replace('driver = "', 'partition = "elastic,elastic-cpu", driver = "')

        with another_lua(site, both):
            yield site


@pytest.fixture
def nobody_trains(site: SandboxSite) -> None:
    site.slurm("scancel", "--me")
    until(site, lambda: not site.slurm("squeue", "--me", "-h"), lambda: site.slurm("squeue"))
    until(
        site,
        lambda: all(node["in_pool"] and not node["lease"] for node in site.client.status()["nodes"]),
        site.client.status,
    )


def until(site: SandboxSite, reached: Callable[[], bool], told: Callable[[], object]) -> None:
    waiting.until("what is wanted", reached, waiting.written(site.root), told)


def lent(site: SandboxSite, job: str) -> set[str]:
    """The nodes on which Slurm shows pilots of a trainer."""
    lines = site.slurm("squeue", "-h", "-t", "R", "-n", "bft-pilot", "-o", "%N|%k|%P").splitlines()
    shown = [line.split("|") for line in lines]
    assert all(partition == ("elastic-cpu" if node in CPU else "elastic") for node, _, partition in shown)
    return {node for node, comment, _ in shown if comment.split()[1] == job}


def sbatch(site: SandboxSite, *words: str) -> str:
    """Submit by Slurm's own command, with the plug-ins; returns the job's id."""
    done = site.slurm("sbatch", "--parsable", *words)
    return done.splitlines()[-1]


def bft_sbatch(site: SandboxSite, *words: str) -> str:
    """Submit by bft."""
    done = site.bft("sbatch", "--parsable", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def waits_until_lent(site: SandboxSite, wanted: dict[str, set[str]]) -> None:
    def told() -> object:
        return {job: lent(site, job) for job in wanted}, site.client.status(), site.log_path.read_text()[-3000:]

    until(site, lambda: all(lent(site, job) == nodes for job, nodes in wanted.items()), told)


@pytest.mark.usefixtures("nobody_trains")
def test_trainers_get_the_gpus_and_features_that_they_ask_for_by_either_way(site: SandboxSite) -> None:
    jobs = {
        sbatch(site, "--elastic=1-4,gpu=a100:2", "train.py"): A100,
        sbatch(site, "--elastic=1-4", "-C", "ib", "train.py"): V100,
        bft_sbatch(site, "--elastic=1-1", "-p", "elastic-cpu", "train.py"): CPU,
    }
    waits_until_lent(site, jobs)
    sizes = "2 of a100x2, 1 of cpu256-3G, 2 of v100x1"
    assert says(site.log_path.read_text(), "service.saying.classes", sizes=sizes)
    said = site.bft("explain", next(iter(jobs))).stdout
    assert re.search(r"starts on . nodes? \(.*, a100x2\)", said), said


@pytest.mark.usefixtures("nobody_trains")
def test_a_trainer_runs_on_one_class_of_nodes_unless_it_says_mix(site: SandboxSite) -> None:
    ib = bft_sbatch(site, "--elastic=1-4", "inside.py")
    # whoever comes first may take the class that the other needs, and nobody is moved
    waits_until_lent(site, {ib: V100})
    plain = sbatch(site, "--elastic=1-5", "train.py")
    waits_until_lent(site, {ib: V100, plain: A100})
    site.slurm("scancel", ib, plain)
    # with fewer it might stay as it is, where the fifth comes too late to outweigh a resize
    mixed = bft_sbatch(site, "--elastic=5,mix", "train.py")
    waits_until_lent(site, {mixed: A100 | V100 | CPU})


def test_what_no_node_can_be_is_said_at_submission_and_by_explain(site: SandboxSite) -> None:
    for words, hint in (
        (["--elastic=1-2,gpu=h100"], "no class of nodes has gpu=h100: there are a100x2, cpu256-3G, v100x1"),
        (["--elastic=1-2", "-C", "nvlink"], "no class of nodes has -C nvlink"),
        (["--elastic=3-4,gpu=2", "-p", "elastic"], "its largest class of nodes has 2"),
        (["--elastic=1-1", "-C", "ib|a100"], "features joined by &"),
        (["--elastic=1-1", "-p", "batch"], "take elastic or elastic-cpu"),
    ):
        done = site.bft("sbatch", *words, "train.py")
        assert done.returncode == 2
        assert hint in done.stderr
        assert len(done.stderr.splitlines()) == 1
    job = sbatch(site, "--elastic=1-2,gpu=h100", "train.py")  # slurmctld's Lua file knows no node
    until(
        site,
        lambda: bool(says(site.bft("explain", job).stdout, "core.classes.no_class_has", where="", classes="gpu=h100")),
        site.client.status,
    )
    site.slurm("scancel", job)


SIZED = """\
#!/usr/bin/env python3
import time, torch
def make_step(batch_size=512):
    model = torch.nn.Linear(4096, 4096)
    optimizer = torch.optim.Adam(model.parameters())
    def step():
        optimizer.zero_grad()
        model(torch.randn(batch_size, 4096)).square().mean().backward()
        optimizer.step()
    return step
if __name__ == "__main__":
    time.sleep(600)
"""
TINY = '{"like": "v100-pcie-16gb", "memory_bytes": 1073741824}'


@pytest.mark.torch
@pytest.mark.usefixtures("nobody_trains")
def test_a_script_with_a_step_gets_no_nodes_whose_gpus_are_too_small_for_it(site: SandboxSite) -> None:
    corrections = site.config_path.with_name("gpus.json")
    (site.work / "sized.py").write_text(SIZED)
    try:
        corrections.write_text(f'{{"types": {{"a100": {TINY}}}}}')
        done = site.bft("sbatch", "--parsable", "--elastic=2-4,gpu=1", "sized.py", timeout_s=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        small = pattern("cli.worker_memory.too_small", small="a100x2 (1.0 GiB)")
        told = pattern("cli.worker_memory.left_out", told="SMALL", out="a100").replace("SMALL", small)
        assert re.search(told, done.stderr), done.stderr
        waits_until_lent(site, {done.stdout.strip(): V100})
        corrections.write_text(f'{{"types": {{"a100": {TINY}, "v100": {TINY}}}}}')
        words = ("--step-batch", "8", "--elastic", "2-4,gpu=1", "--step-batch", "256", "sized.py")
        refused = site.bft("sbatch", *words, timeout_s=PATIENCE_S)
        assert refused.returncode == 2
        need = pattern("cli.worker_memory.need", batch=256)
        told = pattern("cli.worker_memory.none_so_large", need="NEED").replace("NEED", need)
        assert re.search(told, refused.stderr), refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    finally:
        corrections.unlink()


@pytest.mark.torch
@pytest.mark.usefixtures("nobody_trains")
def test_an_estimate_is_made_on_the_drivers_host_and_explained_class_by_class(site: SandboxSite) -> None:
    (site.work / "sized.py").write_text(SIZED)
    job = sbatch(site, "--elastic=1-4,curve=estimate:64", "sized.py")
    estimated = wording("core.sentences.curve_estimated", told=" on a100x2 (assumed")
    until(
        site,
        lambda: estimated in site.bft("explain", job).stdout,
        site.client.status,
    )
    said = site.bft("explain", job).stdout
    last = next(line for line in reversed(said.splitlines()) if line.startswith("sized.py: its curve"))
    traced = wording("cli.size_curve.basis_trace", whose="data sheet of", name="a100-pcie-40gb", batch=64)
    assert f"on a100x2 (assumed, from {traced}): 1: " in last
    run = wording("cli.size_curve.basis_cpu", cpus=256)
    assert f"on cpu256-3G (assumed, from {run}): 1: " in last
    site.slurm("scancel", job)
    without = bft_sbatch(site, "--elastic=1-4,curve=estimate", "train.py")
    until(
        site,
        lambda: bool(says(site.bft("explain", without).stdout, "elastic.estimating.no_estimate")),
        site.client.status,
    )
    assert "train.py has no make_step(batch_size)" in site.bft("explain", without).stdout
    site.slurm("scancel", without)
    done = site.bft("size", "curve", "sized.py", "--nodes", "1-4,gpu=h100")
    told = wording("cli.size_curve.nothing_estimated", notes="there is none")
    assert (done.returncode, done.stderr) == (1, f"bft: {told}\n")


def test_the_classes_are_shown(site: SandboxSite) -> None:
    assert re.search(r"n\[1-2\] .* a100x2", site.bft("nodes").stdout)
    assert re.search(r"svc2 +cpu256-3G", site.bft("status").stdout)
