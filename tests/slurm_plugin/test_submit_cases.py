"""One list of submissions by two ways, `sbatch --elastic` with the plug-ins and `bft sbatch` without: equal outcomes.

On a real cluster, as a user without privileges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from elastic.options.elastic_option import ElasticSpec
from elastic.options.job_script import Header, restore
from tests.slurm_plugin.plugins import User

pytestmark = pytest.mark.cluster

Submit = Callable[..., "Outcome"]

SUBMITTED = re.compile(r"Submitted batch job (\d+)\n")

SCRIPTS = {
    "train.py": "#!/usr/bin/env python3\nimport sys\nprint(sys.argv)\n",
    "sub/train.py": "#!/usr/bin/env python3\n",
    "split.py": "#!/usr/bin/env -S python3 -u\nimport torch\n",
    "inside.py": "#!/usr/bin/env python3\n# ?\n#SBATCH --elastic=2-3,backend=torchrun\n#SBATCH -J inside\nimport os\n",
    "twice.py": "#!/usr/bin/env python3\n#SBATCH --elastic=1-2\n#SBATCH --elastic=1-3\n",
    "named.py": "#!/usr/bin/env python3\n#SBATCH --partition=elastic\n#SBATCH --elastic=1-2\n",
    "odd name.py": '#!/usr/bin/env python3\nprint("é \\" \\\\ %s")\n\n\n',
    "short.py": "#!/usr/bin/env python3",
    "quoted.py": "#!/usr/bin/env python3\n#SBATCH --elastic='1-2,progress=s \"(?P<step>[0-9]+)\", ' # why\n",
    "escaped.py": "#!/usr/bin/env python3\n#SBATCH --elastic=1-2,progress=a\\#b\\\\.(?P<step>\\d+)\\ \n",
    "open.py": "#!/usr/bin/env python3\n#SBATCH --elastic='1-2\n",
    "wide.py": "#!/usr/bin/env python3\n#SBATCH --nodes=4\n",
    "range.py": "#!/usr/bin/env python3\n#SBATCH -N 1-3 -t 20\n",
    "other.py": "#!/usr/bin/env python3\n#SBATCH -p batch\n",
    "shell.sh": "#!/bin/bash\nhostname\n",
    "perl.pl": "#!/usr/bin/env perl\n",
}


@dataclass(frozen=True)
class Outcome:
    """What became of a submission: a job, or `said` alone."""

    said: str
    job: dict[str, str] | None = None
    header: Header | None = None
    source: str = ""


@pytest.fixture(scope="module", autouse=True)
def scripts(user: User) -> None:
    for name, text in SCRIPTS.items():
        (user.home / name).parent.mkdir(exist_ok=True)
        (user.home / name).write_text(text)


@pytest.fixture(params=["sbatch with the plug-ins", "bft sbatch without"])
def submit(request: pytest.FixtureRequest, site: SandboxSite, user: User) -> Iterator[Submit]:
    """Submits a job that is held, as the user, and says what came of it."""
    plugged = request.param == "sbatch with the plug-ins"
    plugstack = site.root / "plugstack.conf"
    before = plugstack.read_text()

    def submit(*words: str) -> Outcome:
        done = user.run("sbatch", "--hold", *words) if plugged else user.bft("sbatch", "--hold", *words)
        said = done.stdout + done.stderr
        assert "Traceback" not in said
        ids = user.run("squeue", "-h", "-o", "%i").stdout.split()
        if done.returncode != 0:
            assert ids == []
            return Outcome(said)
        assert len(ids) == 1
        job = dict(re.findall(r"(\w[\w/]*)=(\S*)", user.run("scontrol", "show", "job", "-o", ids[0]).stdout))
        header, source = restore(user.run("scontrol", "write", "batch_script", ids[0], "-").stdout)
        return Outcome(said, job, header, source)

    try:
        if not plugged:
            plugstack.write_text("")
        yield submit
    finally:
        user.run("scancel", "--me")
        plugstack.write_text(before)


ACCEPTED = [
    (["--elastic=1-2", "train.py"], "1-2"),
    (["--elastic", "1-4", "train.py"], "1-4"),
    (["--elastic=3", "train.py"], "3-3"),
    (["--elastic=1-64", "train.py"], "1-64"),  # more than there are
    (["--elastic=1-2", "sub/train.py"], "1-2"),
    (["--elastic=1-2", "odd name.py", "a", "b c"], "1-2"),
    (["--elastic=1-2", "split.py"], "1-2"),
    (["--elastic=1-2", "short.py"], "1-2"),
    (["--elastic=1-4,backend=horovod,sizes=4:1:2", "train.py"], "1-4,backend=horovod,sizes=1:2:4"),
    (["--elastic=1-2,weight=2,up=30,down=5.5,workers=2", "train.py"], "1-2,weight=2,up=30,down=5.5,workers=2"),
    (["--elastic=1-2,resume=run-svc1-4711.u0.0a", "train.py"], "1-2,resume=run-svc1-4711.u0.0a"),
    (["--elastic=1-2,resume=7@hpc", "train.py"], "1-2,resume=7@hpc"),
    (["--elastic=1-2,state=/lustre/me/run#7", "train.py"], "1-2,state=/lustre/me/run#7"),
    (['--elastic=1-2,progress={"step": (?P<step>\\d+)} ', "train.py"], '1-2,progress={"step": (?P<step>\\d+)} '),
    (["quoted.py"], '1-2,progress=s "(?P<step>[0-9]+)", '),
    (["escaped.py"], r"1-2,progress=a#b\.(?P<step>d+)"),
    (["-p", "elastic", "-J", "mine", "--time=30", "--elastic=1-2", "train.py"], "1-2"),
    (["inside.py"], "2-3,backend=torchrun"),
    (["--elastic=1-4", "inside.py"], "1-4"),
    (["twice.py"], "1-3"),
    (["named.py"], "1-2"),
    (["--elastic=1-3,weight=2", "-N", "1-3", "train.py"], "1-3,weight=2"),  # twice the same
    (["--elastic=1-3", "range.py"], "1-3"),
    (["--elastic=4", "wide.py"], "4-4"),
]

REFUSED = [
    (["--elastic=4-1", "train.py"], "--elastic=1-4"),
    (["--elastic=0", "train.py"], "smallest number of nodes is 1"),
    (["--elastic=0-4", "train.py"], "smallest number of nodes is 1"),
    (["--elastic=", "train.py"], "--elastic=1-8"),
    (["--elastic=many", "train.py"], "MIN-MAX"),
    (["--elastic=1-", "train.py"], "MIN-MAX"),
    (["--elastic=-2", "train.py"], "MIN-MAX"),
    (["--elastic=1-9999999999", "train.py"], "MIN-MAX"),
    (["--elastic=1-\x1b[2J", "train.py"], "MIN-MAX"),
    (["--elastic=5-64", "train.py"], "4 nodes"),
    (["--elastic=1-2,", "train.py"], "unknown option"),
    (["--elastic=1-2,colour=red", "train.py"], "known: backend="),
    (["--elastic=1-2,backend=horovodd", "train.py"], "horovod"),
    (["--elastic=1-2,sizes=1:9", "train.py"], "9 is outside 1-2"),
    (["--elastic=1-2,sizes=", "train.py"], "sizes=1:2:4:8"),
    (["--elastic=1-2,weight=-1", "train.py"], "positive"),
    (["--elastic=1-2,up=soon", "train.py"], "positive"),
    (["--elastic=1-2,workers=0", "train.py"], "at least 1"),
    (["--elastic=1-2,resume=../7", "train.py"], "as bft checkpoints ls shows it"),
    (["--elastic=1-2,state=run7", "train.py"], "give a folder from / on"),
    (["--elastic=1-2,state=/a b", "train.py"], "MIN-MAX"),
    (["--elastic=1-2,container=", "train.py"], "give an image"),
    (["--elastic=1-2,share=4", "train.py"], "give CPUs and memory of a node"),
    (["--elastic=1-2,progress=step", "train.py"], "name a group step or samples"),
    (["--elastic=1-2,progress=\xe9(?P<step>.)", "train.py"], "letters than those of ASCII"),
    (["open.py"], "--elastic='1-2"),
    (["--elastic=1-2", "-p", "batch", "train.py"], "batch is not harvested"),
    (["--elastic=1-2", "-p", "elastic,batch", "train.py"], "elastic"),
    (["--elastic=1-2", "other.py"], "batch is not harvested"),
    (["--elastic=1-2", "wide.py"], "--nodes"),
    (["--elastic=1-2", "-N", "4", "train.py"], "says how many nodes"),
    (["--elastic=1-4", "-N", "4", "train.py"], "says how many nodes"),
    (["--elastic=1-4", "-N", "1-3", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "range.py"], "says how many nodes"),
    (["--elastic=1-2", "-n4", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "-c", "2", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "-w", "n1", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "-x", "n1", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "-a", "1-3", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "-C", "fast|slow", "train.py"], "features joined by &"),
    (["--elastic=1-2", "--constraint=[a&b]", "train.py"], "features joined by &"),
    (["--elastic=1-2,gpu=:4", "train.py"], "gpu=a100:4"),
    (["--elastic=1-2", "-G", "1", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "--gres=gpu:1", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "--tres-per-task=gres/gpu:1", "train.py"], "tres-per-task"),  # sbatch has it since 23.11
    (["--elastic=1-2", "--mem=100", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "--mem-per-cpu=100", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "--exclusive", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "--contiguous", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "--ntasks-per-node=2", "train.py"], "says how many nodes"),
    (["--elastic=1-2", "shell.sh"], "Python"),
    (["--elastic=1-2", "perl.pl"], "Python"),
    (["--elastic=1-2", "--wrap=python3 train.py"], "--wrap: an elastic job is a Python script"),
    (["--elastic=1-2", "missing.py"], "missing.py"),
]


@pytest.mark.parametrize(("words", "spec"), ACCEPTED, ids=lambda value: " ".join(value) if list is type(value) else "")
def test_an_elastic_submission_makes_the_same_job_by_either_way(
    submit: Submit, site: SandboxSite, user: User, words: list[str], spec: str
) -> None:
    outcome = submit(*words)
    name = next(word for word in words if word in SCRIPTS)
    source = SCRIPTS[name]
    assert outcome.job is not None
    assert outcome.header is not None
    assert outcome.job["Partition"] == "bft-driver"
    numbers = ("NumNodes", "NumTasks", "NumCPUs", "CPUs/Task")
    assert [outcome.job[name].removesuffix("-1") for name in numbers] == ["1"] * 4
    assert outcome.job["JobName"] == (
        "mine" if "mine" in words else {"inside.py": "inside"}.get(name, Path(name).name).split()[0]
    )
    assert outcome.job["AdminComment"].startswith("bftd")
    # `bft sbatch` hides the script's own option from an sbatch that does not know it.
    assert outcome.source.replace("##SBATCH", "#SBATCH").rstrip("\n") == source.rstrip("\n")
    header = outcome.header
    kept = (
        header.elastic.rstrip() if name == "escaped.py" else header.elastic
    )  # 26.05 keeps an escaped blank at its end
    assert ElasticSpec.parse(kept) == ElasticSpec.parse(spec)
    assert header.script == str(user.home / name)
    # slurmctld may not see the user's files: with the plug-ins, the driver looks for the Python.
    assert Path(header.interpreter).name in ("", "python3")
    assert (header.partition, header.pilot_mode, header.pilot_options) == ("elastic", "salloc", ())
    assert header.socket == str(site.root / "bftd.sock")
    low, high = ElasticSpec.parse(spec).nodes_min, ElasticSpec.parse(spec).nodes_max
    assert f"{low} to {high} nodes of elastic" in outcome.said


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        (["-N", "1-3", "train.py"], "1-3"),
        (["-N1-3", "-J", "mine", "train.py"], "1-3"),
        (["--nodes=2", "train.py"], "2-2"),
        (["-N", "1,2,4", "train.py"], "1-4,sizes=1:2:4"),
        (["range.py"], "1-3"),
        (["-N", "1-2", "range.py"], "1-2"),  # the command line wins, as with sbatch
    ],
    ids=lambda value: " ".join(value) if list is type(value) else "",
)
def test_the_number_of_nodes_of_sbatch_alone_is_that_of_bft_sbatch(
    site: SandboxSite, user: User, words: list[str], spec: str
) -> None:
    try:
        done = user.bft("sbatch", "--hold", *words)
        assert done.returncode == 0, done.stderr
        job_id = SUBMITTED.fullmatch(done.stdout)
        assert job_id is not None, "what tools read is all of standard output"
        job = user.run("scontrol", "show", "job", "-o", job_id[1]).stdout
        assert re.search(r" NumNodes=1(-1)? NumCPUs=1 ", job), "the driver's"
        header, _ = restore(user.run("scontrol", "write", "batch_script", job_id[1], "-").stdout)
        assert ElasticSpec.parse(header.elastic) == ElasticSpec.parse(spec)
    finally:
        user.run("scancel", "--me")


def test_tools_read_the_same_line_whoever_submits(site: SandboxSite, user: User) -> None:
    words = ("--hold", "--elastic=1-2", "train.py")
    try:
        for submit in (lambda *more: user.run("sbatch", *more), lambda *more: user.bft("sbatch", *more)):
            assert SUBMITTED.fullmatch(submit(*words).stdout)
            assert re.fullmatch(r"\d+\n", submit("--parsable", *words).stdout)
            quiet = submit("--quiet", *words)
            assert (quiet.returncode, quiet.stdout) == (0, "")
        assert user.bft("sbatch", "--quiet", *words).stderr == ""
    finally:
        user.run("scancel", "--me")


def test_a_range_of_nodes_alone_leaves_a_job_of_sbatch_what_it_is(site: SandboxSite, user: User) -> None:
    try:
        done = user.run("sbatch", "--hold", "-N", "1-3", "train.py")
        assert SUBMITTED.fullmatch(done.stdout)
        job = user.run("scontrol", "show", "job", "-o", done.stdout.split()[-1]).stdout
        assert " Partition=batch " in job
        assert " NumNodes=1-3 " in job
    finally:
        user.run("scancel", "--me")


@pytest.mark.parametrize(("words", "hint"), REFUSED, ids=lambda value: " ".join(value) if list is type(value) else "")
def test_an_impossible_submission_is_refused_with_the_same_hint_by_either_way(
    submit: Submit, words: list[str], hint: str
) -> None:
    first = submit(*words).said.splitlines()[0]  # after it, sbatch says in its own words that it gives up
    assert hint in first
    assert first.isprintable()
