"""python -m studies.crius: see studies.crius.command."""

from bftd import entry
from studies.crius.command import crius

entry.run(crius, "studies.crius")
