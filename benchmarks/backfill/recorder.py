r"""Record clusters without bftd, and slurmctld's own account of its backfill cycles beside it.

    python -m benchmarks.backfill.recorder --recipes default,bf30,slow --seeds 1,2 --parallel 4 --out FOLDER

Each is a run of the impact benchmark without bftd, and becomes one file, FOLDER/RECIPE-RELEASE-SEED.xz, which
benchmarks.backfill.replay and tests/bftd/pool/backfill/test_against_slurm.py read. With another release than this
machine's nothing stays but what is printed:

    tools/slurm_root.sh SUITE \
        sh -c 'python -m benchmarks.backfill.recorder --out /tmp/r >&2; tar -c -C /tmp/r .' | tar -x
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from benchmarks.backfill.recording import pack
from benchmarks.impact import record
from benchmarks.impact.__main__ import STRETCH, recipes_of, seeds_of, whole
from benchmarks.impact.comparison import Comparison, compare, log, logs_of
from benchmarks.impact.recipe import RECIPES
from bftd.base.errors import BftError
from slurm_plugin.errors import SlurmError

FOLDER = Path(__file__).resolve().parents[2] / "build" / "record"


def main() -> None:
    """Record what is missing."""
    options = _options()
    # As for Ctrl-C: the context managers end what was started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    comparison = Comparison(
        folder=options.folder,
        pairs=1,
        seeds=options.seeds,
        jobs=options.jobs,
        brief=False,
        training="sleeping",
        stretch=options.stretch,
        parallel=options.parallel,
        record=True,
    )
    options.folder.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        compare([RECIPES[name] for name in options.recipes], comparison)
    finally:
        for run in sorted(options.folder.glob("*A.jsonl")):
            done = record.load(run)
            file = options.out / f"{done.recipe}-{done.release}-{done.seed}.xz"
            if not file.exists():
                pack(run, logs_of(run), file)
                log(f"{file}: {file.stat().st_size / 1024:.0f} KB")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.backfill.recorder",
        description="Record snapshots beside Slurm's account of backfill.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the recordings go")
    parser.add_argument(
        "--recipes",
        type=recipes_of,
        default=["default", "bf30", "slow"],
        metavar="NAME,...",
        help="[default,bf30,slow]",
    )
    parser.add_argument("--seeds", type=seeds_of, default=(1,), metavar="N,...", help="of the streams [1]")
    parser.add_argument("--jobs", type=whole, default=60, help="regular jobs in the stream [60]")
    parser.add_argument(
        "--stretch", type=whole, default=STRETCH, help=f"show the stream so many times slower [{STRETCH}]"
    )
    parser.add_argument("--parallel", type=whole, default=1, help="runs at a time [1]")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where runs and logs are kept; those there are not run again"
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (BftError, SlurmError, OSError, ValueError) as error:
        log(str(error))
        sys.exit(1)
