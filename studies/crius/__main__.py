"""python -m studies.crius: see studies.crius.command."""

from bftd.base import command
from studies.crius.command import crius

command.run(crius, "studies.crius")
