"""A self-contained HTML page on the value of a site's idle nodes: `bft report`."""

from bftd.whatif.report.errors import ReportError
from bftd.whatif.report.model import Case, Expected, Point, Provenance, Replayed
from bftd.whatif.report.page import page

__all__ = ["Case", "Expected", "Point", "Provenance", "Replayed", "ReportError", "page"]
