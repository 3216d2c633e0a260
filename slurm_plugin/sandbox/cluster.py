"""A private Slurm cluster on this machine: own ports, own folder, no root service touched."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from types import TracebackType

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.clients.env import scrubbed
from slurm_plugin.errors import SandboxError, SlurmError, SlurmMissing
from slurm_plugin.pilots import reservation
from slurm_plugin.read.settings import parse_config
from slurm_plugin.sandbox import config, munged, processes
from slurm_plugin.sandbox.ports import reserved_ports

# These exact names are needed: started as slurmctld-wlm, its Debian name, a daemon silently ignores gres.conf.
_DAEMONS = ("slurmctld", "slurmd", "slurmstepd")
_CLIENTS = ("sbatch", "salloc", "srun", "scancel", "squeue", "scontrol", "sinfo", "sdiag", "sacctmgr")
_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_RECORD = "sandbox.json"
PLUGIN = "spank_bftd.so"
_UP_LIMIT_S = 60.0  # 8 nodes take 1 s, 256 take 12 s; a loaded machine several times that
_DOWN_LIMIT_S = 10.0
_GRACE_S = 1.0  # the time for job processes to exit on SIGTERM
_POLL_S = 0.03
_SOCKET_PATH_MAX = 107  # sun_path of a unix socket that slurmstepd makes in the spool folder
_LONGEST_SOCKET = "/spool/svc100/svc100_1000000.4294967294"


class Sandbox:
    """A private cluster of compute nodes n1.. (partitions batch and elastic) and service nodes svc1.. (bft-driver).

    A context manager: up on entry, down on exit. `gpus` maps GPU type to GPUs per node, and nodes are split evenly
    among the types. Without `root` it lives in a new folder below the system's temporary one. `down` removes the folder
    unless `keep`. Scheduling and kill times are Slurm's defaults; `tuned` makes them short. `plugins` loads the SPANK
    plug-in, which `make plugins` compiles; the Lua files are always there. `stand_ins` maps sets of further nodes, as
    in "rack1-n[001-040]", to their options in slurm.conf: they have no slurmd, can be allocated and run nothing.
    `munge` runs a munged with its own key, which authenticates the cluster's messages; without it every message is
    trusted. On `shared` nodes jobs get parts of nodes instead of whole ones, at most as many CPUs as there are.
    """

    def __init__(
        self,
        nodes: int = 8,
        service_nodes: int = 1,
        gpus: Mapping[str, int] | None = None,
        root: Path | None = None,
        cpus_per_node: int = 4,
        tuned: bool = False,
        keep: bool = False,
        service_cpus: int = 256,
        extra_conf: str = "",
        plugins: bool = False,
        munge: bool = False,
        stand_ins: Mapping[str, str] | None = None,
        shared: bool = False,
    ) -> None:
        self.shape = config.ClusterShape(
            nodes=nodes,
            service_nodes=service_nodes,
            gpus=tuple((gpus or {}).items()),
            cpus_per_node=cpus_per_node,
            service_cpus=service_cpus,
            tuned=tuned,
            extra_conf=extra_conf,
            plugins=plugins,
            munge=munge,
            stand_ins=tuple((stand_ins or {}).items()),
            shared=shared,
        )
        _check_shape(self.shape)
        self.keep = keep
        self._root = root.resolve() if root is not None else None

    @property
    def root(self) -> Path:
        """The folder of the cluster."""
        if self._root is None:
            raise SandboxError("this sandbox has no folder yet: call up() first")
        return self._root

    @property
    def conf(self) -> Path:
        """The path of slurm.conf."""
        return self.root / "slurm.conf"

    @property
    def node_names(self) -> tuple[str, ...]:
        """The compute nodes, in order."""
        return self.shape.node_names

    @property
    def service_node(self) -> str:
        """The first service node."""
        return self.shape.service_names[0]

    @property
    def munge_socket(self) -> str:
        """The socket of the cluster's munged; "" if it has none."""
        return str(munged.socket_of(self.root)) if self.shape.munge else ""

    def env(self) -> dict[str, str]:
        """Return the caller's environment, changed to address this cluster and no other."""
        environ = scrubbed(os.environ)
        environ["SLURM_CONF"] = str(self.conf)
        environ["BFT_STATE_DIR"] = str(self.root / "states")  # trainers' states are removed with the cluster
        # The nodes share this host's CPUs: OpenMP threads that spin while waiting would take CPUs from other nodes.
        environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.shape.nodes)))
        if self.shape.munge:
            environ["BFTD_MUNGE_SOCKET"] = self.munge_socket
        environ["PATH"] = f"{self.root / 'bin'}:{environ.get('PATH', os.defpath)}"
        return environ

    def client(self, timeout_s: float = 5.0) -> SlurmClient:
        """Return a client of this cluster."""
        return SlurmClient(self.conf, timeout_s, commands_dir=self.root / "bin")

    def __enter__(self) -> Sandbox:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> Sandbox:
        """Start the daemons and wait until every node is idle; if that fails, end what was started."""
        programs = _find_daemons()
        plugin = compiled_plugin() if self.shape.plugins else None
        host = _host_name()
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="bft-sandbox-"))
        else:
            _claim_folder(self._root)
        try:
            (self.root / _RECORD).write_text(json.dumps(asdict(self.shape)))
            _check_root(self.root)
            self._lay_out(programs, plugin)
            with reserved_ports(1 + self.shape.nodes + self.shape.service_nodes) as ports:
                self._write_conf(host, ports)
                if self.shape.munge:
                    munged.start(self.root, self.env() | {processes.MARK: str(self.root)})
                self._start_daemons(ports[0])
                self._wait_until_idle()
                if self._reservation(programs):
                    self._reserve()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """End every process of the cluster, steps and jobs included, and remove its folder; a second call is harmless.

        Raise SandboxError if a process will not die.
        """
        if self._root is None:
            return
        if left := processes.end(self.root, _GRACE_S, _DOWN_LIMIT_S):
            pids = ", ".join(map(str, left))
            raise SandboxError(f"processes of the sandbox {self.root} will not end, look at them with ps: {pids}")
        if not self.keep and (self.root / _RECORD).exists():
            try:
                shutil.rmtree(self.root)
            except OSError as error:
                raise SandboxError(f"cannot remove {error.filename}: {error.strerror}; remove it by hand") from error

    def status(self) -> dict[str, str]:
        """Map each node to its state and flags, as in IDLE+PLANNED; empty if the controller does not answer."""
        if self._root is None or not processes.of_root(self.root):
            return {}  # a request would last until the time-out
        try:
            nodes = self.client().snapshot().nodes.values()
        except SlurmError:
            return {}
        return {node.name: "+".join([node.state, *sorted(node.flags)]) for node in nodes}

    @classmethod
    def attach(cls, root: Path) -> Sandbox:
        """Find the cluster in the folder `root`, running or crashed, to use it or take it down."""
        try:
            record = json.loads((root / _RECORD).read_text())
            pairs = {key: tuple((name, value) for name, value in record[key]) for key in ("gpus", "stand_ins")}
            shape = config.ClusterShape(**{**record, **pairs})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SandboxError(f"no sandbox in {root}: start one, or name its folder") from error
        sandbox = cls(root=root)
        sandbox.shape = shape
        return sandbox

    @staticmethod
    def running() -> list[Path]:
        """List the folders of the sandboxes that have a process and that this user may access."""
        roots = {Path(process.root) for process in processes.processes()}
        return sorted(root for root in roots if (root / _RECORD).exists())

    def _lay_out(self, programs: Mapping[str, Path], plugin: Path | None) -> None:
        root = self.root
        root.chmod(0o755)  # jobs of other users start here too
        for folder in ("state", "run", "log", "bin", "dev"):
            (root / folder).mkdir()
        (root / "state").chmod(0o700)  # it holds the jobs' environments
        for name in self.shape.node_names + self.shape.service_names:
            (root / "spool" / name).mkdir(parents=True)
        for name, program in programs.items():
            (root / "bin" / name).symlink_to(program)
        for index in range(max((count for _, count in self.shape.gpus), default=0)):
            # Slurm wants a character device per GPU and follows a link to one; only root could make a new device.
            (root / "dev" / f"nvidia{index}").symlink_to("/dev/zero")
        lua = resources.files("slurm_plugin").joinpath("plugins", "lua")
        for name in ("bftd.lua", "bftd_gpus.lua"):
            (root / name).write_text(lua.joinpath(name).read_text())
        shipped = lua.joinpath("job_submit.lua").read_text()
        (root / "job_submit.lua").write_text(
            config.job_submit_lua(shipped, root, _driver(), os.getuid(), self._reservation(programs))
        )
        if text := config.cgroup_conf(release_of(programs["slurmctld"])):
            (root / "cgroup.conf").write_text(text)
        if plugin is not None:  # a copy, because other users may not be able to read where it was compiled
            shutil.copyfile(plugin, root / plugin.name)
        (root / "plugstack.conf").write_text(config.plugstack_conf(plugin and root / plugin.name, _bft()))

    def _reservation(self, programs: Mapping[str, Path]) -> str:
        """Return the pilots' reservation, if this release needs one and there is a service node to make it of."""
        needed = reservation.needed(release_of(programs["slurmctld"])) and self.shape.service_nodes
        return reservation.NAME if needed else ""

    def _reserve(self) -> None:
        client = self.client()
        config = parse_config(client.run("scontrol", "show", "config").out)
        command = reservation.create_command(self.service_node, config.get("AccountingStorageEnforce", ""))
        answer = client.run(*command)
        if answer.code != 0:
            raise SandboxError(f"the pilots' reservation cannot be made: {answer.complaint}")

    def _write_conf(self, host: str, ports: list[int]) -> None:
        (self.root / "gres.conf").write_text(config.gres_conf(self.shape, self.root / "dev"))
        self.conf.write_text(config.slurm_conf(self.shape, self.root, host, getpass.getuser(), ports))

    def _start_daemons(self, controller_port: int) -> None:
        binaries = self.root / "bin"
        self._start([[str(binaries / "slurmctld"), "-c", "-f", str(self.conf)]])
        self._wait_for_port(controller_port)  # a slurmd that finds no controller waits a second before it retries
        slurmd = [str(binaries / "slurmd"), "-d", str(binaries / "slurmstepd"), "-f", str(self.conf), "-N"]
        self._start([[*slurmd, name] for name in self.shape.node_names + self.shape.service_names])

    def _start(self, commands: list[list[str]]) -> None:
        """Start daemons in parallel; each moves itself into the background once it has read its configuration."""
        environ = self.env() | {processes.MARK: str(self.root)}
        log = self.root / "log" / "start.log"
        null = subprocess.DEVNULL
        with log.open("ab") as output:
            started = [
                subprocess.Popen(
                    command,
                    env=environ,
                    cwd=self.root,
                    stdin=null,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                for command in commands
            ]
        for command, process in zip(commands, started, strict=True):
            try:
                code = process.wait(_UP_LIMIT_S)
            except subprocess.TimeoutExpired:
                code = -1
            if code != 0:
                raise SandboxError(f"{os.path.basename(command[0])} did not start: {_last_line(log)}")

    def _wait_for_port(self, port: int) -> None:
        deadline_s = time.monotonic() + _UP_LIMIT_S
        while time.monotonic() < deadline_s:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                return
            except OSError:
                time.sleep(_POLL_S)
        raise SandboxError(
            f"slurmctld does not listen; its log ends: {_last_line(self.root / 'log' / 'slurmctld.log')}"
        )

    def _wait_until_idle(self) -> None:
        deadline_s = time.monotonic() + _UP_LIMIT_S
        expected = {*self.shape.node_names, *self.shape.service_names}
        while True:
            states = self.status()
            if states.keys() >= expected and set(states.values()) == {"IDLE"}:
                return
            if time.monotonic() > deadline_s:
                bad = {name: state for name, state in states.items() if state != "IDLE"}
                why = f"nodes not idle: {bad}" if states else "the controller does not answer"
                last = _last_line(self.root / "log" / "slurmctld.log")
                raise SandboxError(
                    f"the sandbox is not up after {_UP_LIMIT_S:.0f} s, {why}; slurmctld's log ends: {last}"
                )
            time.sleep(_POLL_S)


def _check_shape(shape: config.ClusterShape) -> None:
    if shape.nodes < 1 or shape.service_nodes < 0 or shape.cpus_per_node < 1:
        raise SandboxError("a sandbox has at least one node of at least one CPU: check nodes and cpus_per_node")
    if any(not kind.isidentifier() or count < 1 for kind, count in shape.gpus):
        raise SandboxError("a GPU type is a plain word with a number of GPUs of at least 1, as in a100=4")


def _check_root(root: Path) -> None:
    if len(str(root)) + len(_LONGEST_SOCKET) > _SOCKET_PATH_MAX:
        raise SandboxError(f"the folder's path is too long for Slurm's sockets, choose a shorter one: {root}")
    if any(letter.isspace() or letter in "#," for letter in str(root)):
        raise SandboxError(
            f"Slurm cannot use a folder with a blank, a comma or a # in its path, choose another: {root}"
        )


def _claim_folder(root: Path) -> None:
    """Make the folder that the caller named; raise SandboxError unless it is empty, as `down` removes it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        if (root / _RECORD).exists():
            raise SandboxError(
                f"a sandbox is in {root} already: bft sandbox down --root {shlex.quote(str(root))} ends it"
            )
        if any(root.iterdir()):
            raise SandboxError(f"{root} is not empty: name a new folder")
    except OSError as error:
        raise SandboxError(f"cannot make the sandbox's folder {root}: {error.strerror}") from error


def _find_daemons() -> dict[str, Path]:
    """Find the daemons and client commands of one Slurm installation; returns name -> path of the program itself."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), *_SBIN))
    found: dict[str, Path] = {}
    for name in (*_DAEMONS, *_CLIENTS):
        # Debian's plain names may point to slurm-wlm-emulator, whose daemons cannot run jobs.
        program = (shutil.which(f"{name}-wlm", path=search) if name in _DAEMONS else None) or shutil.which(
            name, path=search
        )
        if program is None:
            raise SlurmMissing(
                f"{name} not found: install Slurm, on Debian and Ubuntu with `apt-get install slurm-wlm "
                "slurm-wlm-basic-plugins`"
            )
        found[name] = Path(program).resolve()
    return found


def release_of(slurmctld: Path) -> tuple[int, int]:
    """Return the release of a controller, as in (22, 5)."""
    answer = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.search(r"(\d+)\.(\d+)", answer)
    if found is None:
        raise SandboxError(f"{slurmctld} -V shows no release, but {answer.strip()!r}: reinstall Slurm")
    return int(found[1]), int(found[2])


def compiled_plugin() -> Path:
    """Return the plug-in that `make plugins` compiles; raise SandboxError if it is missing."""
    plugin = Path(__file__).parents[2] / "build" / "plugins" / PLUGIN
    if not plugin.is_file():
        raise SandboxError(f"{plugin} is not there: compile it with `make plugins`")
    return plugin


def _driver() -> Path:
    """Return the driver of this installation; a cluster without elastic jobs needs none."""
    return Path(sys.executable).parent / "bft-driver"


def _bft() -> Path:
    """Return this installation's bft, which sbatch --auto-gpus calls."""
    return Path(sys.executable).parent / "bft"


def _host_name() -> str:
    host = socket.gethostname().split(".")[0]
    try:
        socket.gethostbyname(host)
    except OSError as error:
        raise SandboxError(
            f"this machine's name {host} does not resolve, Slurm needs that: add `127.0.0.1 {host}` to /etc/hosts"
        ) from error
    return host


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n") if path.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
