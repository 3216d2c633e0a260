"""Record what `bft site` reads from this machine's Slurm, with stock settings and with the recommended ones.

Run it again (with PYTHONPATH=.) for a new Slurm release: it writes a new folder named after it. Nothing of this machine
gets in. sdiag.txt of 22.05 was recorded by itself, after some jobs had waited: a new cluster has planned nothing yet.
"""

from __future__ import annotations

import re
import socket
import tempfile
from pathlib import Path

from benchmarks.site_lines import applied
from slurm_plugin.sandbox import Sandbox
from slurm_plugin.site import RULES, advise, read, render
from tests.slurm_plugin.site.sites import WANTED
from tests.slurm_plugin.site.stock import StockCluster

ASSETS = Path(__file__).parent / "assets"


def main() -> None:
    """Save scontrol's answers of a stock cluster, and of the same one with the printed lines of slurm.conf."""
    with tempfile.TemporaryDirectory(prefix="bft-record-") as name:
        root = Path(name).resolve() / "c"
        with StockCluster(root) as cluster:
            site = read(cluster.client(), WANTED)
            _save(cluster, "stock")
        advised = advise(site, RULES)
        files = {"job_submit.lua": render(advised, "job_submit.lua")}
        with StockCluster(root, lambda text: applied(text, render(advised, "slurm.conf")), files) as cluster:
            _save(cluster, "recommended")


def _save(cluster: Sandbox, name: str) -> None:
    client = cluster.client()
    release = client.run("scontrol", "--version").out.split()[1].rsplit(".", 1)[0]
    folder = ASSETS / release / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, words in (("config", ["config"]), ("partitions", ["partition", "-o"]), ("nodes", ["nodes", "-o"])):
        text = client.run("scontrol", "show", *words).out
        text = text.replace(str(cluster.root), "/etc/slurm").replace(socket.gethostname().split(".")[0], "ctl")
        (folder / f"{file}.txt").write_text(re.sub(r" OS=Linux .*? (?=RealMemory=)", " OS=Linux ", text))


if __name__ == "__main__":
    main()
