"""The price of harvesting for a site's own queue: its log of jobs, run again on the simulated slurmctld."""

from bftd.simulation.price.model import LostJob, Price, Reproduced, Tried, Wait
from bftd.simulation.price.pricing import price

__all__ = ["LostJob", "Price", "Reproduced", "Tried", "Wait", "price"]
