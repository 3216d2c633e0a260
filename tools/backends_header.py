"""Writes the C header with the names of the back-ends: python3 tools/backends_header.py FILE.

A build step of the SPANK plug-in (`make plugins`). It runs with any Python from 3.10 on and needs nothing installed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from elastic.backends import KINDS

_HEADER = """\
/* Made by tools/backends_header.py from the table in elastic/backends. */
#ifndef BFTD_BACKENDS_H
#define BFTD_BACKENDS_H

#define BACKENDS_LIST {list}
#define BACKENDS_SAID "{said}"
#define BACKENDS_CHOICE "{choice}"

#endif
"""


def header(names: Iterable[str]) -> str:
    """The header's text; raises ValueError for a name that would not do in C and on a command line."""
    names = list(names)
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise ValueError(f"a back-end cannot be called {name!r}: small letters, digits and hyphens")
    return _HEADER.format(list=", ".join(f'"{name}"' for name in names), said=", ".join(names), choice="|".join(names))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header(KINDS))
