"""The page as people see it: served by a daemon, rendered by Chromium, with and without scripts and a pointer."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import browser
from tests.browser import Tab
from tests.support.messages import wording

pytestmark = [pytest.mark.slow, pytest.mark.browser]

ROOT = Path(__file__).parents[3]
SECTIONS = ["now", "machine", "trainers", "efficiency", "usage", "decisions", "nodes"]

# What the browser made of the page. Contrast is that of each text and what is behind it (WCAG 2, 1.4.3).
MEASURE = """
(() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = numbers(color).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (numbers(color)[3] !== 0) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  for (const details of document.querySelectorAll('details')) details.open = true;
  const shown = [...document.querySelectorAll('body *')].filter((e) => e.getClientRects().length);
  const pale = [];
  for (const element of shown) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    const style = getComputedStyle(element), color = element instanceof SVGElement ? style.fill : style.color;
    const found = ratio(color, behind(element));
    if (found < 4.5) pale.push([element.tagName, element.textContent.slice(0, 30), found]);
  }
  const paper = getComputedStyle(document.body).backgroundColor;
  const faint = [];
  for (const path of document.querySelectorAll('.lines path')) {
    const found = ratio(getComputedStyle(path).stroke, paper);
    if (path.getClientRects().length && found < 3) faint.push([path.getAttribute('class'), found]);
  }
  const outside = [];
  for (const svg of document.querySelectorAll('.plot svg')) {
    const outer = svg.getBoundingClientRect();
    if (!outer.width) continue;
    for (const text of svg.querySelectorAll('text')) {
      const inner = text.getBoundingClientRect();
      if (inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1)
        outside.push(text.textContent);
    }
  }
  const letters = shown.filter((e) => e.tagName === 'text')
    .map((e) => parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width
      / e.ownerSVGElement.viewBox.baseVal.width);
  return {
    pale, faint, outside,
    letters: letters.length ? [Math.min(...letters), Math.max(...letters)] : [12, 12],
    sections: [...document.querySelectorAll('main>section')].filter((e) => e.offsetHeight > 0).map((e) => e.id),
    pictures: [...document.querySelectorAll('.plot svg')].filter((e) => e.getBoundingClientRect().width > 0)
      .map((e) => [e.querySelectorAll('path').length, e.getBoundingClientRect().height, e.getAttribute('aria-label')]),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    twice: [...document.querySelectorAll('[id]')].map((e) => e.id).filter((id, at, all) => all.indexOf(id) !== at),
    script: document.querySelector('.plot[tabindex]') !== null,
    injected: document.querySelectorAll('main th i:not([class])').length,
    names: document.querySelector('#trainers table:not(.data)')?.innerText,
  };
})()
"""


@dataclass
class Seen:
    """A daemon with a page, a browser, and the loop that both are spoken to on."""

    port: int
    token: str
    address: str
    loop: asyncio.AbstractEventLoop

    def look(self, test: Callable[[Tab], Awaitable[None]], **options: Any) -> None:
        """Run a test in a tab of its own."""

        async def inside() -> None:
            async with browser.tab(self.address, **{"width": 1280, **options}) as opened:
                await test(opened)

        self.loop.run_until_complete(asyncio.wait_for(inside(), 300))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@contextmanager
def daemon(folder: Path, nodes: int, trainers: int) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A daemon without Slurm, as the benchmark of the page has it."""
    command = [sys.executable, "-m", "benchmarks.web.daemon", str(folder), f"--nodes={nodes}", f"--trainers={trainers}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield process, told["port"], told["token"]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()
    with daemon(tmp_path_factory.mktemp("web"), 500, 12) as (_, port, token):
        try:
            address = loop.run_until_complete(stack.enter_async_context(browser.browser()))
            yield Seen(port, token, address, loop)
        finally:
            loop.run_until_complete(stack.aclose())
            loop.close()


@pytest.mark.parametrize(
    ("width", "dark", "scripts"),
    [
        (360, False, True),
        (360, True, False),
        (900, True, True),
        (900, False, False),
        (1600, False, True),
        (1600, True, True),
        (2560, True, True),
    ],
)
def test_the_page_is_readable_at_every_width_in_light_and_in_dark_with_scripts_and_without(
    seen: Seen, width: int, dark: bool, scripts: bool
) -> None:
    async def test(tab: Tab) -> None:
        await tab.go(seen.url)
        found = await tab.value(MEASURE)
        assert found["wide"] == 0, "the page itself is never scrolled sideways"
        assert (found["pale"], found["faint"], found["outside"], found["twice"]) == ([], [], [], [])
        assert found["sections"] == SECTIONS
        assert len(found["pictures"]) == 5
        for paths, height, about in found["pictures"]:
            assert paths > 4
            assert height > 100
            assert re.search("over (the last )?1 day", about)
        smallest, largest = found["letters"]
        assert smallest >= 9.5
        assert largest <= 18
        assert found["script"] == scripts
        assert found["injected"] == 0
        assert '<i>"x"&</i>' in found["names"], "a name is shown as it is"
        assert tab.complaints == []
        assert set(tab.requests) - {url for url in tab.requests if url.startswith("data:image/svg")} == {seen.url}

    seen.look(test, width=width, dark=dark, scripts=scripts)


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False), (2560, True)])
@pytest.mark.parametrize(
    ("link", "sections"),
    [
        ("#trainers th a", ["now", "nodes", "past", "noted", "decisions"]),
        ("#nodes .on a", ["now", "leases", "decisions"]),
    ],
)
def test_a_trainer_and_a_node_have_pages_that_the_main_page_leads_to_and_that_lead_back(
    seen: Seen, link: str, sections: list[str], width: int, dark: bool
) -> None:
    async def test(tab: Tab) -> None:
        await tab.go(f"{seen.url}?token={seen.token}")
        await tab.go(await tab.value(f"document.querySelector('{link}').href"))
        found = await tab.value(MEASURE)
        assert (found["wide"], found["pale"], found["faint"], found["outside"], found["twice"]) == (0, [], [], [], [])
        assert found["sections"] == sections
        smallest, largest = found["letters"]
        assert 9.5 <= smallest <= largest <= 18
        assert await tab.value("document.querySelector('main a').href") == seen.url
        assert tab.complaints == []

    seen.look(test, width=width, dark=dark)


def test_without_scripts_the_ranges_are_links_and_the_page_comes_again_by_itself(seen: Seen) -> None:
    async def test(tab: Tab) -> None:
        await tab.go(seen.url)
        link = await tab.value("document.querySelector('nav a').href")
        assert await tab.value("document.querySelector('nav [aria-current]').textContent") == "1 day"
        await tab.go(link)
        assert await tab.value("document.querySelector('nav [aria-current]').textContent") == "1 hour"
        assert await tab.value("document.querySelector('.plot svg').getAttribute('aria-label').includes('last 1 hour')")
        assert await tab.value("document.querySelector('noscript meta').httpEquiv") == "refresh"

    seen.look(test, scripts=False)


def test_all_of_it_is_reached_by_keyboard_and_shows_where_one_is(seen: Seen) -> None:
    async def test(tab: Tab) -> None:
        await tab.go(seen.url)
        visited = []
        for _ in range(60):
            await tab.press("Tab")
            where = await tab.value(
                "(() => { const e = document.activeElement, s = getComputedStyle(e); return [e.tagName,"
                " e.className || e.textContent.slice(0, 20), s.outlineStyle, parseFloat(s.outlineWidth)]; })()"
            )
            if where[0] == "BODY":
                break
            assert where[2] != "none", where
            assert where[3] >= 2, where
            visited.append((where[0], where[1]))
        assert visited[0] == ("A", "skip")
        assert [name for _, name in visited[1:5]] == ["1 hour", "6 hours", "1 day", "7 days"]
        assert sum(name == "plot" for _, name in visited) == 5
        assert sum(name.startswith("wide") for _, name in visited) >= 2
        await tab.go(seen.url)
        await tab.press("Tab")
        await tab.press("Enter")
        assert await tab.value("document.activeElement.id") == "main"
        await tab.press("Tab")
        said = "document.activeElement.nextElementSibling.textContent"
        last = await tab.value(said)
        assert "regular jobs" in last
        await tab.press("ArrowLeft")
        before = await tab.value(said)
        await tab.press("Home")
        first = await tab.value(said)
        assert len({last, before, first}) == 3
        assert await tab.value("document.querySelectorAll('.plot[data-at] .cursor').length") == 2

    seen.look(test)


def test_a_page_that_is_looked_at_renews_itself_and_keeps_what_was_opened(seen: Seen) -> None:
    async def test(tab: Tab) -> None:
        await tab.go(f"{seen.url}?hours=6")
        await tab.value("document.querySelector('#nodes-regular').open = true")
        await tab.value("document.querySelector('#machine .plot').focus()")
        await tab.press("Home")
        read = await tab.value("document.activeElement.dataset.at")
        await tab.value(
            "new Promise((done) => { new MutationObserver(done).observe(document.getElementById('main'),"
            " {childList: true}); document.dispatchEvent(new Event('visibilitychange')); })"
        )
        assert await tab.value("document.querySelector('#nodes-regular').open")
        assert await tab.value("document.activeElement.className + document.activeElement.dataset.at") == "plot" + read
        assert await tab.value("document.querySelector('#gone').textContent") == ""
        assert set(tab.requests) - {url for url in tab.requests if url.startswith("data:")} == {f"{seen.url}?hours=6"}
        assert tab.complaints == []

    seen.look(test)


def test_the_page_says_in_words_that_the_daemon_is_gone(seen: Seen, tmp_path: Path) -> None:
    with daemon(tmp_path, 8, 2) as (process, port, _):

        async def test(tab: Tab) -> None:
            await tab.go(f"http://127.0.0.1:{port}/")
            assert (await tab.value(MEASURE))["wide"] == 0
            process.send_signal(signal.SIGTERM)
            process.wait(300)
            told = await tab.value(
                "new Promise((done) => { const gone = document.getElementById('gone');"
                " new MutationObserver(() => done(gone.textContent)).observe(gone, {childList: true});"
                " document.dispatchEvent(new Event('visibilitychange')); })"
            )
            assert told.startswith("The daemon is gone: it does not answer.")
            assert await tab.value("document.querySelectorAll('.plot svg').length") > 0, "what was seen stays"

        seen.look(test, width=360)


def test_the_token_of_an_address_leaves_it_and_shows_who_used_how_much(seen: Seen) -> None:
    async def test(tab: Tab) -> None:
        await tab.go(seen.url)
        told = wording("web.sections.usage_hidden")
        assert told in await tab.value("document.querySelector('#usage').textContent")
        await tab.go(f"{seen.url}?token={seen.token}&hours=1")
        assert await tab.value("location.href") == f"{seen.url}?hours=1"
        assert told not in await tab.value("document.querySelector('#usage').textContent")
        assert await tab.value("document.cookie") == "", "scripts cannot read the cookie"

    seen.look(test)
