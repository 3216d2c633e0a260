"""A self-contained HTML page on the value of a site's idle nodes: `bft report`."""

from bftd.simulation.report.errors import ReportError
from bftd.simulation.report.model import Case, Expected, Point, Provenance, Replayed
from bftd.simulation.report.page import page

__all__ = ["Case", "Expected", "Point", "Provenance", "Replayed", "ReportError", "page"]
