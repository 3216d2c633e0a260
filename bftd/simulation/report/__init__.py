"""A self-contained HTML page on the value of a site's idle nodes: `bft report`."""

from bftd.simulation.report.model import Case, Provenance, Replayed, TriedSettings, WeeklyGain
from bftd.simulation.report.page import page

__all__ = ["Case", "Provenance", "Replayed", "TriedSettings", "WeeklyGain", "page"]
