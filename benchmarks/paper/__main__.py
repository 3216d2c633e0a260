"""The paper's figures and tables once more, from its own trace, side by side with what it prints.

    python -m benchmarks.paper [--json OUT] [--data DIR] [--only PART ...] [--jobs N] [--quick] [--from JSON]

A whole run writes docs/evidence/paper.md; with --only or --quick the page goes to standard output. Liu et al.,
"BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes" (arXiv:2106.12091).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.markdown import NOT_PRINTED, table
from benchmarks.paper import extensions, hpo, networks
from benchmarks.paper.replays import SUBSET, TRACE, TRAINERS, Case, Results, missing, run_all, week
from bftd.base.errors import BftError, UsageError
from bftd.simulation.trace.stats import stats

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence" / "paper.md"
DATA = ROOT.parent / "shared" / "data" / "summit"
QUICK_HOURS = 6.0


@dataclass(frozen=True)
class Part:
    """A figure or table: the replays it needs, and its section of the page."""

    cases: Callable[[], Sequence[Case]]
    section: Callable[[Results], str]


PARTS = {
    "table1": Part(lambda: (), hpo.table1),
    "figure7": Part(hpo.figure7_cases, hpo.figure7),
    "figure8": Part(hpo.figure8_cases, hpo.figure8),
    "figure9": Part(hpo.figure9_cases, hpo.figure9),
    "figure10": Part(hpo.figure10_cases, hpo.figure10),
    "figure11": Part(hpo.figure11_cases, hpo.figure11),
    "figure12": Part(networks.figure12_cases, networks.figure12),
    "figure13": Part(networks.figure13_cases, networks.figure13),
    "figure14": Part(
        lambda: [*networks.table3_cases(), *networks.table4_cases()],
        networks.figure14,
    ),
    "table3": Part(networks.table3_cases, networks.table3),
    "table4": Part(networks.table4_cases, networks.table4),
    "figure15": Part(extensions.figure15_cases, extensions.figure15),
    "figure16": Part(extensions.figure16_cases, extensions.figure16),
    "mends": Part(extensions.ablation_cases, extensions.ablation),
    "beyond": Part(extensions.beyond_cases, extensions.beyond),
    "scavenger": Part(extensions.scavenger_cases, extensions.scavenger),
    "timing": Part(extensions.timing_cases, extensions.timing),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Replays what the parts need, and writes page and JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.paper", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every figure with its arguments there")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="where the Summit trace is")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes; default: cores")
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_HOURS:g} hours of the trace only")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="JSON", help="no replay: the page of an earlier run"
    )
    options = parser.parse_args(arguments)
    try:
        found = _read(options.source) if options.source is not None else measured(options)
    except BftError as error:
        print(f"benchmarks.paper: {error}", file=sys.stderr)
        return error.exit_code
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    try:
        text = page(found)
    except KeyError as error:
        if options.source is None:
            raise
        print(
            f"benchmarks.paper: {options.source} lacks {error}: another version made it, run it again", file=sys.stderr
        )
        return 2
    if found["parts"] == list(PARTS) and not found["quick"]:
        PAGE.write_text(text)
        print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
    else:
        print(text, end="")
    return 0


def _read(path: Path) -> dict[str, Any]:
    """What an earlier run found."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict) or "parts" not in found:
        raise UsageError(f"{path} is not what --json of this command writes")
    return found


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything that was asked for; what the JSON holds. Raises `UsageError` where the data is not there."""
    if options.jobs < 1:
        raise UsageError(f"--jobs must be 1 or more, not {options.jobs}")
    if lacking := missing(options.data):
        raise UsageError(
            f"{options.data} lacks {', '.join(lacking)}: make them from the replay data of the paper's authors "
            "(https://github.com/BFTrainer/Replayer) and name the folder with --data"
        )
    parts = [name for name in PARTS if options.only is None or name in options.only]
    cases = list(dict.fromkeys(each for name in parts for each in PARTS[name].cases()))
    hours = QUICK_HOURS if options.quick else None
    started_s = time.perf_counter()
    rows, outcomes = run_all(options.data, cases, jobs=options.jobs, hours=hours, log=_log)
    derived = {}
    subset = week(options.data, SUBSET, 1)
    if "figure10" in parts:
        milp, equal = (outcomes[each.key] for each in (hpo.MILP, hpo.EQUAL_SHARE))
        derived["per_event"] = hpo.per_event(milp, equal)
    return {
        "parts": parts,
        "quick": options.quick,
        "jobs": options.jobs,
        "machine": {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()},
        "wall_s": time.perf_counter() - started_s,
        "inputs": {name: _sha256(options.data / name) for name in (TRACE, *TRAINERS.values())},
        "trace": {
            "whole": stats(week(options.data, "", 1)).to_json(),
            "subset": stats(subset).to_json(),
        },
        "derived": derived,
        "rows": rows,
    }


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- the page ---


def page(found: dict[str, Any]) -> str:
    """The page of a run, from what its JSON holds."""
    results = Results(found["rows"], found["derived"], found["trace"])
    sections = [PARTS[name].section(results) for name in found["parts"]]
    absent = [ABSENT] if found["parts"] == list(PARTS) else []
    return "\n\n".join([_head(found), *sections, *absent, _inputs(found)]) + "\n"


def _head(found: dict[str, Any]) -> str:
    machine = found["machine"]
    quick = f" Only the first {QUICK_HOURS:g} hours: a quick run, no figure of which means anything." * found["quick"]
    cpu_s = sum(row["extras"]["cpu_s"] for row in found["rows"])
    run = (
        f"`python -m benchmarks.paper` makes this page: {len(found['rows'])} replays, {cpu_s / 60:.0f} minutes of CPU "
        f"time, here {found['wall_s'] / 60:.0f} minutes in {found['jobs']} processes on a machine of "
        f"{machine['cores']} cores ({machine['machine']}, Python {machine['python']}).{quick}"
    )
    paper = (
        "The paper is Liu et al., [BFTrainer](https://arxiv.org/abs/2106.12091). The trace is the first week of its "
        "recording of Summit, 1,024 nodes of it as in the paper (columns 0 to 1,023: which ones the authors took is "
        "not known); the trainers and all parameters are the authors'. Every figure is a replay as `bft replay` does "
        "it, with the daemon's own decision core, and nothing is tuned to the trace. Where the paper shows only a "
        f'plot, "{NOT_PRINTED}" stands for its value, and what its text says of the plot is quoted.'
    )
    words = (
        "- **U** is the outcome in samples over that of as many dedicated nodes (section 4.1.2, equation (18)).\n"
        "- **reference** replays by the rules of the authors' code, faults included, to compare with their figures.\n"
        "- **exact** has those faults mended, and is what bftd does ([what each does to "
        "U](#what-each-mend-does-to-u)).\n"
        "- Unless said otherwise: 1,000 ShuffleNet trials, pj_max 10, T_fwd 120 s, R_up and R_dw as in the authors' "
        "list (about 18 and 12 s)."
    )
    return "\n\n".join(("# The paper's evaluation, regenerated", run, paper, words))


ABSENT = """## What of the paper is not here

- **Table 1**: Theta and Mira, and Summit beyond its first week.
- **Figure 1**, the distribution of fragments: the share below ten minutes alone (Table 1, last two rows).
- **Figure 5**, solve time by trainers and nodes: some sizes in
  [benchmarks](benchmarks.md#the-allocation-problem).
- **Figure 6**, idle nodes over the week: node-hours by six hours alone (Figure 10, first row).
- **AdaptDL**, which section 4.3 names beside Elastic Horovod and TorchElastic: there is no back-end for it.
- **An instance and a metric of one user's own** (its first scenario): a daemon that serves a site has one objective for
  all, and `weight=` counts with the objective `priority` alone.
- **T_fwd predicted** from the queue (section 3.4.3): it is set, or chosen from a trace
  ([`bft advise`](../howto/replay.md)).
- **Topology** (future work there): a problem may have groups of nodes
  ([solvers](../reference/solvers.md)), the daemon makes none.
- **Applications other than training** (future work there).

Figures 2 to 4 explain the method; Table 2 is an input, the authors' curves."""


def _inputs(found: dict[str, Any]) -> str:
    rows = [[name, f"`{digest[:16]}`"] for name, digest in found["inputs"].items()]
    text = (
        "`--json OUT` writes every figure with the arguments of its replay, the versions and the full hashes; "
        "`--from OUT` makes this page of it without a replay."
    )
    return "\n\n".join(("## Inputs", table(["file", "SHA-256 begins with"], rows), text))


if __name__ == "__main__":
    sys.exit(main())
