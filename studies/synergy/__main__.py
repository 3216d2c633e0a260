"""python -m studies.synergy: packing jobs on servers that share GPUs, CPUs and memory, and simulating them."""

import click

from bftd.base import command
from studies.synergy.pack_command import pack
from studies.synergy.simulate_command import simulate

synergy = click.Group("synergy", {"pack": pack, "simulate": simulate}, help="Synergy's packers and orders.")

if __name__ == "__main__":
    command.run(synergy, "studies.synergy")
