"""What regular jobs pay, on the page and from files through `bft report` and `bft advise`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftd.cli.main import bft
from bftd.simulation.price import Price, Reproduced
from bftd.simulation.report import Case, Provenance, Replayed, page
from bftd.simulation.trace import job_log, write
from tests.bftd.simulation.price.making import busy, priced
from tests.bftd.simulation.report.making import SITE, result, trace, trainers
from tests.support.messages import says
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.plot]


def _page(**fields: object) -> str:
    return page([Case(SITE, **fields)], Provenance("bft report"))[:].decode()  # type: ignore[arg-type]


def test_the_price_stands_at_the_top_and_in_a_section_with_a_picture() -> None:
    text = _page(replays=(Replayed(result()),), price=priced())
    assert text.index('id="price"') < text.index('id="efficiency"')
    assert "+1.0%" in text
    assert "<b>bf_interval" not in text
    assert "<i>2" not in text
    assert "<u>the log" not in text
    assert text.count('class="plot wide"') > _page(replays=(Replayed(result()),)).count('class="plot wide"')


def test_without_a_price_both_numbers_are_there_and_no_picture() -> None:
    why = Price(nodes=4, jobs=90, checks=(Reproduced("", 90, 3600.0, 1800.0),), why_not="REASON", slurm="x")
    text = _page(price=why)
    assert "REASON" in text
    assert ">1\N{NO-BREAK SPACE}h<" in text
    assert ">30\N{NO-BREAK SPACE}min<" in text
    assert 'class="plot wide"' not in text


def test_a_mean_wait_of_nothing_has_a_price_in_seconds() -> None:
    paid = priced()
    everyone = replace(paid.waits[0], of_s=0.0, mean_s=2.0)
    assert "+2\N{NO-BREAK SPACE}s" in _page(price=replace(paid, waits=(everyone,)))


def _run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(bft, list(words))
    return done.exit_code, done.output


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace with a log of jobs beside it, and trainers."""
    monkeypatch.setattr("bftd.simulation.price.pricing.COURSES", 3)
    monkeypatch.chdir(tmp_path)
    write(trace(), tmp_path / "site.csv.gz")
    job_log.write(busy(jobs=10), tmp_path / "site.jobs.csv.gz")
    (tmp_path / "x.json").write_text(json.dumps([trainer.to_json() for trainer in trainers()[:3]]))
    return tmp_path


def test_the_log_beside_a_trace_is_found(site: Path) -> None:
    words = ("report", "site.csv.gz", "--trainers", "x.json", "--no-sweep", "--jobs", "1", "-o", "r.html")
    assert _run(*words)[0] == 0
    text = (site / "r.html").read_text()
    assert 'id="price"' in text
    assert hashlib.sha256((site / "site.jobs.csv.gz").read_bytes()).hexdigest() in text
    assert _run(*words, "--no-price")[0] == 0
    assert 'id="price"' not in (site / "r.html").read_text()


def test_a_log_alone_has_a_page(site: Path) -> None:
    assert _run("report", "site.jobs.csv.gz", "--jobs", "1", "-o", "r.html")[0] == 0
    text = (site / "r.html").read_text()
    assert 'id="price"' in text
    assert 'id="pool"' not in text
    assert "log of jobs" in text


def test_a_log_named_beside_its_trace_is_simulated_once(site: Path) -> None:
    words = ("report", "site.jobs.csv.gz", "site.csv.gz", "--trainers", "x.json", "--no-sweep", "--jobs", "1")
    assert _run(*words, "-o", "r.html")[0] == 0
    assert (site / "r.html").read_text().count('id="price"') == 1


def test_a_log_is_refused_where_no_price_is_wanted(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = Terminal(monkeypatch, capsys, "report")("site.jobs.csv.gz", "--no-price", "-o", "r.html")
    assert code == 2
    assert says(said, "cli.report.log_without_price", path="site.jobs.csv.gz")
    assert not (site / "r.html").exists()


def test_advice_has_the_price_beside_its_figures(site: Path) -> None:
    words = ("advise", "site.csv.gz", "--trainers", "x.json", "--t-fwd", "30", "--pj-max", "1", "--jobs", "1")
    told = json.loads(_run(*words, "--json")[1])
    assert told["price"]["jobs"] == 10
    assert "price:  " in _run(*words)[1]
    assert json.loads(_run(*words, "--json", "--no-price")[1])["price"] is None


def test_a_log_that_cannot_be_read_is_refused_in_one_line(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Terminal(monkeypatch, capsys, "report")
    (site / "bad.jobs.csv").write_text("nothing\n")
    code, _, said = run("bad.jobs.csv", "-o", "r.html")
    assert code == 2
    assert says(said, "whatif.job_log.no_log", path="bad.jobs.csv")
