"""What a driver needs to know, read once at its start."""

from __future__ import annotations

import os
import pwd
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elastic.backends import Kind
from elastic.driver.routes import given_address
from elastic.link.seal import new_secret
from elastic.spec import ElasticSpec


@dataclass
class Site:
    """What the daemon's lists tell of the site; it is set anew with each of them."""

    container: str = ""
    """How a command is started in a user's image (bftd.protocol.container), "" where it is not."""

    stage: str = ""
    """Where workers write states by path first, with {user} in it or not; "" for nowhere."""


@dataclass(frozen=True)
class DriverSettings:
    """A trainer as its driver sees it; `argv` begins with the script.

    `socket_path` is where the daemon is: the path of its socket, or `[user@]host:port`. `partition` is "" where any
    harvested one will do, `features` are those that the trainer's nodes must have. `given_address` is where all nodes
    reach this host, "" where each has to be told by its own route. `script_sha256` is the hexadecimal
    digest of the script that was submitted, "" where the user's own file is run. `keep_state_s` is for how many seconds
    the state is kept after training has ended well. `secret` is the trainer's,
    drawn for one life of its driver.
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
    site: Site = field(default_factory=Site)
    secret: str = field(default_factory=new_secret, repr=False)

    def agent_message(self, kind: Kind, env: Mapping[str, str]) -> dict[str, object]:
        """What an agent has to know to start its node process; `env` is what the trainer's state adds for workers."""
        return {
            "op": "configure",
            "backend": self.backend,
            "interpreter": self.interpreter,
            "argv": list(self.argv),
            "cwd": str(self.cwd),
            "script_dir": str(self.script_dir),
            "workers_per_node": self.spec.workers_per_node or 0,
            "frozen_s": self.spec.patience_s,
            # The agents read the script from a file; over this connection they are told which one was meant.
            "env": {"BFT_TRAINER": self.trainer_id, "BFT_SCRIPT_SHA256": self.script_sha256, **env},
            "defaults": dict(kind.defaults),
            "interface_variables": list(kind.interface_variables),
            "container": self.container_message(),
        }

    @property
    def python(self) -> str:
        """The script's Python, as a user is told of it."""
        image = self.spec.container
        return self.interpreter if image is None else f"{self.interpreter} in container={image}"

    @property
    def stage(self) -> str:
        """Where this user's workers write states by path first, "" for nowhere."""
        return self.site.stage.replace("{user}", self.user)

    def container_message(self) -> dict[str, object] | None:
        """What a node, or the driver's own host, has to know to start something in the image; None without one."""
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
    """A new id of a trainer that is no job: the daemon takes it from this process's user only."""
    return f"run-{os.uname().nodename}-{os.getpid()}.u{os.getuid()}.{secrets.token_hex(4)}"


def own_user() -> str:
    """The name of the user that this process runs as, whatever its environment says; a number where he has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
