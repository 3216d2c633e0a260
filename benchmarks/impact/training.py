"""A stand-in for the user's Python that sleeps where training would compute.

Sixteen processes that train would measure two cores, not the method. So the trainers' scripts name this program as
their interpreter. The driver, its pilots, `srun` and the agents are the real ones; only the node process that an agent
starts, and torchrun's store beside the driver, answer the protocol without importing torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from elastic.options.job_script import Header, interpreter_of, rewrite

NAME = "python3"  # a script's interpreter must be called like one

_PROGRAM = """\
#!{python} -IS
import json, os, signal, socket, sys

def store():
    print('{{"op":"ready"}}', flush=True)
    for line in sys.stdin:
        generation = json.loads(line)["generation"]
        print(json.dumps({{"op": "opened", "generation": generation, "port": 1}}), flush=True)

def node(descriptor):
    link = socket.socket(fileno=descriptor)
    lines = link.makefile("rw")

    def say(**message):
        lines.write(json.dumps(message) + "\\n")
        lines.flush()

    say(op="ready")
    for line in lines:
        if json.loads(line)["op"] in ("join", "regroup"):
            say(op="join", generation=-1)

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2] == "elastic.backends.torchrun.store":
    store()
else:
    node(int(sys.argv[4]))
"""

_SCRIPT = """\
#!{interpreter}
import elastic  # what would train
"""


def lay_out(folder: Path, python: str = sys.executable, program: str = _PROGRAM) -> Path:
    """Write the interpreter, which `python` runs, and a script for it into `folder`; returns the script.

    Drivers that were submitted before find both whole at any moment. `program` is the interpreter's text, in which
    "{python}" stands for `python`.
    """
    interpreter, script = folder / NAME, folder / "sleeping.py"
    texts = {interpreter: program.format(python=python), script: _SCRIPT.format(interpreter=interpreter)}
    for path, text in texts.items():
        new = folder / f".{path.name}.new"
        new.write_text(text)
        new.chmod(0o755)
        new.replace(path)
    return script


_DRIVER = """\
#!{python}
from elastic.driver.main import main
main()
"""


def header(script: Path, elastic: str, socket: str, pilot_options: tuple[str, ...]) -> Header:
    """What `bft sbatch` would tell the driver, and options for its pilots that a user cannot give."""
    interpreter = interpreter_of(script.read_text(), str(script))
    return Header(elastic, "elastic", socket, str(script), interpreter, pilot_options=pilot_options)


def with_driver(script: Path, header: Header, path: Path) -> Path:
    """Write `script` to `path` as `bft sbatch` would submit it."""
    driver = path.parent / "own" / "bft-driver"
    driver.parent.mkdir(exist_ok=True)
    driver.write_text(_DRIVER.format(python=sys.executable))
    driver.chmod(0o755)
    path.write_text(rewrite(script.read_text(), str(driver), header))
    return path
