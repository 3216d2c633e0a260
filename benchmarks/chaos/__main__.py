"""`python -m benchmarks.chaos`: faults on a real cluster while real trainers train; docs/evidence/reliability.md."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from pathlib import Path

from benchmarks.chaos import network, page
from benchmarks.chaos.model import KINDS
from benchmarks.chaos.run import perform
from benchmarks.evidence.model import Benchmark
from benchmarks.impact.__main__ import whole
from bftd.base.errors import BftError
from slurm_plugin.errors import SlurmError

EVIDENCE = {
    "chaos": Benchmark(
        ("benchmarks.chaos", "--minutes", "30", "--seed", "1"), 33.0, {"table": page.table}, page.figures
    )
}
_SHOWN = 20
FOLDER = Path(__file__).resolve().parents[2] / "build" / "chaos"


def main() -> int:
    """Run and print; returns 1 if a rule was broken."""
    options = _options()
    try:
        network.enter()
    except BftError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    # As for Ctrl-C: the context managers end what was started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shutil.rmtree(options.folder, ignore_errors=True)
    try:
        found = perform(options.minutes, options.seed, options.kinds, options.folder, _log)
    except (BftError, SlurmError) as error:
        print(f"chaos: {error}; logs are in {options.folder}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1) if options.json else page.table(found))
    for text in found["found"][:_SHOWN]:
        print(f"chaos: {text}", file=sys.stderr)
    if found["found"]:
        print(f"chaos: {len(found['found'])} violations; logs are in {options.folder}", file=sys.stderr)
    return 1 if found["found"] else 0


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--minutes", type=float, default=5.0, help="so long faults strike [5]")
    parser.add_argument("--seed", type=whole, default=1, help="of the faults and of the regular jobs [1]")
    parser.add_argument(
        "--kinds", type=_kinds, default=KINDS, metavar="KIND,...", help=f"of faults, of: {', '.join(KINDS)} [all]"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for logs; what is there is removed")
    return parser.parse_args()


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is no kind of fault: there are {', '.join(KINDS)}")
    return kinds


if __name__ == "__main__":
    sys.exit(main())
