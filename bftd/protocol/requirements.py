"""A trainer's requirements on its nodes, apart from their number."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bftd.protocol.bounds import FEATURES_MOST, NODES_MOST
from bftd.protocol.fields import Fields

# As Slurm writes the type of a GPU and the name of a feature.
GPU_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
TYPES_MOST = 32
FEATURE = re.compile(r"[A-Za-z0-9_.:=+-]{1,64}")


@dataclass(frozen=True, slots=True)
class Requirements:
    """Nodes with `gpus` or more GPUs of type `gpu` and with all `features`; `mix` allows several classes at once.

    "" is any type of GPU, and 0 means no GPU at all unless a type is named. `without` are types of GPUs that are not
    acceptable.
    """

    gpu: str = ""
    gpus: int = 0
    features: tuple[str, ...] = ()
    mix: bool = False
    without: tuple[str, ...] = ()

    @property
    def modest(self) -> bool:
        """Whether any node will do."""
        return not (self.gpu or self.gpus or self.features or self.without)

    def __str__(self) -> str:
        """Return the requirements about as the user wrote them; "" if any node will do."""
        gpu = ":".join(filter(None, (self.gpu, str(self.gpus) if self.gpus else "")))
        words = (
            f"gpu={gpu}" if gpu else "",
            f"no {' or '.join(self.without)}" if self.without else "",
            f"-C {'&'.join(self.features)}" if self.features else "",
        )
        return " and ".join(filter(None, words))

    def to_fields(self) -> dict[str, object]:
        """Return the fields of a registration."""
        return {
            "gpu": self.gpu or None,
            "gpus": self.gpus,
            "features": list(self.features),
            "mix": self.mix,
            "without": list(self.without),
        }

    @classmethod
    def read(cls, fields: Fields) -> Requirements:
        """Read a registration's requirements; raises Malformed."""
        features = fields.items("features", FEATURES_MOST)
        if not all(isinstance(name, str) and FEATURE.fullmatch(name) for name in features):
            raise fields.wrong("features", "a list of names of Slurm's features")
        without = fields.items("without", TYPES_MOST)
        if not all(isinstance(name, str) and GPU_TYPE.fullmatch(name) for name in without):
            raise fields.wrong("without", "a list of types of GPUs")
        return cls(
            gpu=fields.name("gpu", "", form=GPU_TYPE, wanted="a type of GPU"),
            gpus=fields.whole("gpus", 0, maximum=NODES_MOST),
            features=tuple(dict.fromkeys(features)),
            mix=fields.flag("mix", False),
            without=tuple(dict.fromkeys(without)),
        )
