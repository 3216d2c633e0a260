"""A wide residual network's sizes as text for `--config`: `wresnet:k=2,n=4,c=16,s=32,V=10`."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.base.errors import UsageError
from sizing.model.transformer import LARGEST, shown

FAMILY = "wresnet"
KEYS = {
    "k": ("width", "how many times wider than the plain network"),
    "n": ("blocks", "blocks in each of the three groups; the depth is 6 n + 4"),
    "c": ("channels", "channels of the first convolution"),
    "s": ("image", "height and width of an image"),
    "V": ("classes", "classes"),
}


@dataclass(frozen=True, slots=True)
class WideResNet:
    """WRN-(6 `blocks` + 4)-`width` (Zagoruyko and Komodakis 2016) on images of `image` x `image` pixels."""

    width: int = 10
    blocks: int = 4
    channels: int = 16
    image: int = 32
    classes: int = 10


def parse(text: str) -> WideResNet:
    """Parse a network from `wresnet:key=value,...`. Raises UsageError, one line."""
    family, _, options = text.strip().partition(":")
    if family != FAMILY:
        raise UsageError(f"{shown(family)}: not {FAMILY}")
    found: dict[str, int] = {}
    for part in options.split(",") if options.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in KEYS:
            known = ", ".join(f"{name}= ({meaning})" for name, (_, meaning) in KEYS.items())
            raise UsageError(f"{shown(part.strip()) or 'an empty option'}: {FAMILY} knows {known}")
        if not (value.isascii() and value.isdigit()) or len(value) > 9 or not 1 <= int(value) <= LARGEST:
            raise UsageError(f"{key}={shown(value)}: a whole number from 1 to {LARGEST}")
        if KEYS[key][0] in found:
            raise UsageError(f"{key} is given twice")
        found[KEYS[key][0]] = int(value)
    return WideResNet(**found)
