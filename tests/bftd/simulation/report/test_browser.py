"""The page as people see it: rendered by Chromium on a screen and a phone, in light and in dark."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bftd.simulation.replay import Options
from bftd.simulation.report import Provenance, page
from bftd.simulation.report.gather import NamedTrace, gather
from bftd.simulation.report.style import PAPER
from tests import browser
from tests.bftd.simulation.price.making import priced
from tests.bftd.simulation.report.making import SITE, trace, trainers

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.plot]

SECTIONS = ["summary", "price", "pool", "fragments", "efficiency", "costs", "t-fwd", "pareto", "method", "made"]
# One figure a section, one picture of each shown.
PLOTS = 7

# What the browser made of the page, in its own measures. Text is clipped where it leaves the box that shows it: the
# picture for a label of a plot, else the nearest element that hides or scrolls what is too wide.
MEASURE = """
(() => {
  const box = (element) => {
    const {left, right, top, bottom, width, height} = element.getBoundingClientRect();
    return {left, right, top, bottom, width, height};
  };
  const plots = [...document.querySelectorAll('svg.plot')].filter((svg) => svg.getBoundingClientRect().width > 0);
  const clipped = [];
  for (const svg of plots) {
    const outer = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll('text')) {
      const inner = text.getBoundingClientRect();
      if (inner.left < outer.left - 1 || inner.right > outer.right + 1 ||
          inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1) clipped.push(text.textContent);
    }
  }
  for (const element of document.querySelectorAll('body *')) {
    if (element.closest('svg') || !element.getClientRects().length) continue;
    if (element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== 'inline')
      clipped.push(element.tagName + ' ' + element.textContent.slice(0, 40));
  }
  const overlapping = [];
  for (const svg of plots) {
    const labels = [...svg.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()]);
    labels.forEach(([one, a], place) => labels.slice(place + 1).forEach(([two, b]) => {
      if (a.left < b.right - 2 && b.left < a.right - 2 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
        overlapping.push([svg.getAttribute('aria-label').slice(0, 30), one, two]);
    }));
  }
  return {
    title: document.title,
    sections: [...document.querySelectorAll('section[id]')].filter((e) => e.offsetHeight > 0).map((e) => e.id),
    plots: plots.map(box),
    captions: [...document.querySelectorAll('figcaption')].map((e) => e.innerText),
    clipped, overlapping,
    width: document.documentElement.scrollWidth,
    window: document.documentElement.clientWidth,
    loaded: performance.getEntriesByType('resource').map((entry) => entry.name),
    sizes: plots.flatMap((svg) => [...svg.querySelectorAll('text')].map((text) =>
      parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)),
  };
})()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "r.html"
    cases = gather([NamedTrace(SITE, trace())], [], trainers(), Options(), jobs=2)
    cases = [replace(case, price=priced()) for case in cases]
    path.write_bytes(page(cases, Provenance("bft report site.csv.gz", {"bftd": "0"}, [("site", "trace", "ab" * 32)])))
    return path


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (700, False), (375, False), (375, True)])
def test_the_page_is_whole_and_legible(written: Path, width: int, dark: bool) -> None:
    shown = browser.render(written, MEASURE, width=width, dark=dark)
    seen: dict[str, Any] = shown.value
    assert seen["title"].endswith(SITE)
    assert seen["sections"] == SECTIONS
    assert shown.requests == [written.resolve().as_uri()]
    assert seen["loaded"] == []
    assert len(seen["plots"]) == PLOTS
    for plot in seen["plots"]:
        assert plot["width"] >= min(340, width - 40)
        assert plot["height"] >= 150
        assert plot["left"] >= 0
        assert plot["right"] <= seen["window"]
    assert seen["width"] <= seen["window"]
    assert seen["clipped"] == []
    assert seen["overlapping"] == []
    assert len(seen["captions"]) == PLOTS
    assert all(caption.strip() for caption in seen["captions"])
    assert min(seen["sizes"]) >= 10
    _check_picture(shown.png, seen["plots"], dark)


def test_on_paper_all_is_light_and_unfolded(written: Path) -> None:
    folded = (
        "[...document.querySelectorAll('details table')].map((table) => table.checkVisibility() && table.offsetHeight)"
    )
    wide = "[...document.querySelectorAll('svg.wide')].every((svg) => svg.getBoundingClientRect().width > 0)"
    shown = browser.render(written, f"[{wide}, {folded}]", width=600, dark=True, paper=True)
    all_wide, heights = shown.value
    assert all_wide
    assert min(heights) > 40
    _check_picture(shown.png, [], dark=False)


def _check_picture(png: bytes, plots: list[dict[str, float]], dark: bool) -> None:
    """The paper has its colour, and each plot more than that."""
    from matplotlib.image import imread

    pixels = np.rint(imread(io.BytesIO(png))[:, :, :3] * 255).astype(int)
    paper = PAPER.dark if dark else PAPER.light
    assert pixels[2, 2].tolist() == [int(paper[at : at + 2], 16) for at in (1, 3, 5)]
    for plot in plots:
        inside = pixels[int(plot["top"]) : int(plot["bottom"]), int(plot["left"]) : int(plot["right"])]
        drawn = np.abs(inside - pixels[2, 2]).max(axis=2) > 24
        assert drawn.mean() > 0.01
        # not a stripe somewhere: it reaches over most of its place both ways
        assert np.ptp(np.flatnonzero(drawn.any(axis=0))) > 0.8 * inside.shape[1]
        assert np.ptp(np.flatnonzero(drawn.any(axis=1))) > 0.8 * inside.shape[0]
