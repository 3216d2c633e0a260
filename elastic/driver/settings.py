"""The driver's settings, read once at its start."""

from __future__ import annotations

import os
import pwd
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bftd.protocol.sizes import Sizes
from elastic.backends import Kind
from elastic.driver.pilots.addresses import given_address
from elastic.link.authentication import new_secret
from elastic.options.elastic_option import ElasticSpec


@dataclass
class SiteSettings:
    """The site's settings from the daemon's lists; each list sets them anew."""

    container: str = ""
    """The template of a command in a user's image (bftd.protocol.container), "" if the site runs none."""

    stage: str = ""
    """The folder in which workers first write distributed checkpoints, maybe with {user} in it; "" for none."""

    sizes: Sizes | None = None
    """The numbers of nodes that the trainer may have by now; None if the daemon does not say: those of the script."""


def own_log() -> str:
    """Returns the file that this process's output goes to, "" if it is none."""
    try:
        path = os.readlink("/proc/self/fd/1")
        return path if os.path.isfile(path) else ""
    except OSError:
        return ""


@dataclass(frozen=True)
class DriverSettings:
    """A trainer as its driver sees it; `argv` begins with the script.

    `socket_path` is the daemon's address: the path of its socket, or `[user@]host:port`. `partition` is "" if any
    harvested one will do; `features` are those that the trainer's nodes must have. `given_address` is this host's
    address for all nodes, "" if each is told one by its own route. `script_sha256` is the hexadecimal digest of the
    submitted script, "" if the user's own file is run. `keep_state_s` is how many seconds the checkpoint is kept after
    training has ended well. `restarts` is how often Slurm has started the driver's job again. `log` is the file that
    the output goes to, "" for a terminal. `secret` is the trainer's, drawn for one run of its driver.
    """

    trainer_id: str
    name: str
    spec: ElasticSpec
    backend: str
    interpreter: str
    argv: tuple[str, ...]
    cwd: Path
    script_dir: Path
    state_dir: Path
    socket_path: str
    partition: str
    user: str
    account: str = ""
    qos: str = ""
    pilot_mode: str = "salloc"
    pilot_options: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    given_address: str = field(default_factory=given_address)
    script_sha256: str = ""
    keep_state_s: float = 86400.0
    restarts: int = 0
    log: str = field(default_factory=own_log)
    site: SiteSettings = field(default_factory=SiteSettings)
    secret: str = field(default_factory=new_secret, repr=False)

    def agent_message(self, kind: Kind, env: Mapping[str, str]) -> dict[str, object]:
        """Returns an agent's settings for its node process; `env` is the trainer's addition for workers."""
        return {
            "op": "configure",
            "backend": self.backend,
            "interpreter": self.interpreter,
            "argv": list(self.argv),
            "cwd": str(self.cwd),
            "script_dir": str(self.script_dir),
            "workers_per_node": self.spec.workers_per_node or 0,
            "frozen_s": self.spec.frozen_after_s,
            # The agents read the script from a file; over this connection they get its digest.
            "env": {"BFT_TRAINER": self.trainer_id, "BFT_SCRIPT_SHA256": self.script_sha256, **env},
            "defaults": dict(kind.defaults),
            "interface_variables": list(kind.interface_variables),
            "container": self.container_message(),
        }

    @property
    def sizes(self) -> Sizes:
        """The numbers of nodes that the trainer may have by now."""
        return self.site.sizes or self.spec.allowed

    @property
    def python(self) -> str:
        """The script's Python, in the words of messages to users."""
        image = self.spec.container
        return self.interpreter if image is None else f"{self.interpreter} in container={image}"

    @property
    def stage(self) -> str:
        """The folder in which this user's workers first write distributed checkpoints, "" for none."""
        return self.site.stage.replace("{user}", self.user)

    def container_message(self) -> dict[str, object] | None:
        """Returns the settings for starting a program in the image, on any host; None without an image."""
        if self.spec.container is None:
            return None
        folders = [self.cwd, self.script_dir, self.state_dir]
        folders += [Path(folder) for folder in (self.spec.state_path, self.stage) if folder]
        return {
            "template": self.site.container,
            "image": self.spec.container,
            "cwd": str(self.cwd),
            "binds": list(map(str, folders)),
        }


def foreground_id() -> str:
    """Returns a new id of a trainer that is no job: the daemon accepts it from this process's user only."""
    return f"run-{os.uname().nodename}-{os.getpid()}.u{os.getuid()}.{secrets.token_hex(4)}"


def own_user() -> str:
    """Returns the name (or else the number) of the user that this process runs as, whatever its environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
