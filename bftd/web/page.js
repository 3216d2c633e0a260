"use strict";
// Asks for the page again while somebody looks, puts the new state in place of the old, and reads charts at a point.
(() => {
  const AGAIN_MS = 10000, GIVE_UP_MS = 30000, SVG = "http://www.w3.org/2000/svg";
  const gone = document.getElementById("gone");
  const main = document.getElementById("main");
  let last = new Date(), busy = false;

  const path = (element, top) => {
    const steps = [];
    for (let at = element; at && at !== top; at = at.parentElement) steps.unshift([...at.parentElement.children].indexOf(at));
    return steps;
  };
  const follow = (steps, top) => steps.reduce((at, step) => at && at.children[step], top);

  const replace = (page) => {
    const fresh = page.getElementById("main");
    if (!fresh) throw new Error("no page");
    const open = [...main.querySelectorAll("details[open]>summary")].map((each) => each.textContent.replace(/^[\d,]+ /, ""));
    const scrolled = [...main.querySelectorAll(".wide")].map((each) => [path(each, main), each.scrollLeft, each.scrollTop]);
    const focused = main.contains(document.activeElement) && document.activeElement !== main ? path(document.activeElement, main) : null;
    const read = main.querySelector(".plot[data-at]");
    const chart = read && [path(read, main), read.dataset.at];
    main.replaceChildren(...fresh.childNodes);
    for (const summary of main.querySelectorAll("summary"))
      if (open.includes(summary.textContent.replace(/^[\d,]+ /, ""))) summary.parentElement.open = true;
    prepare();
    for (const [steps, left, top] of scrolled) {
      const region = follow(steps, main);
      if (region) { region.scrollLeft = left; region.scrollTop = top; }
    }
    const again = focused && follow(focused, main);
    if (again) again.focus({preventScroll: true});
    const plot = chart && follow(chart[0], main);
    if (plot && plot.show) plot.show(Number(chart[1]));
    for (const place of [".mood", "footer"]) {
      const now = document.querySelector(place), then = page.querySelector(place);
      if (now && then) now.replaceChildren(...then.childNodes);
    }
  };

  const again = async () => {
    if (busy || document.hidden) return;
    busy = true;
    const limit = new AbortController(), timer = setTimeout(() => limit.abort(), GIVE_UP_MS);
    try {
      const answer = await fetch(location.href, {credentials: "same-origin", cache: "no-store", signal: limit.signal});
      const text = await answer.text();
      if (!answer.ok && answer.status !== 404) throw new Error(answer.status === 401 ? "it asks who you are: open the page again with its token" : `it answers ${answer.status}`);
      if (!(main.contains(document.activeElement) && window.getSelection().toString())) replace(new DOMParser().parseFromString(text, "text/html"));
      last = new Date();
      if (gone.textContent) gone.textContent = "";
    } catch (error) {
      const why = error instanceof TypeError || error.name === "AbortError" ? "it does not answer" : error.message;
      const since = last.toLocaleTimeString([], {hour12: false});
      const words = `The daemon is gone: ${why}. What you see is of ${since} on this computer's clock. Trainers go on without it, and nothing grows.`;
      if (gone.textContent !== words) gone.textContent = words;
    } finally {
      clearTimeout(timer);
      busy = false;
    }
  };

  // A chart is read at a point of time: by the pointer, or by the arrow keys once it has the focus.
  const readable = (plot) => {
    const figure = plot.closest("figure"), table = figure.querySelector("table.data"), legend = figure.querySelector(".legend");
    const rows = [...table.tBodies[0].rows].reverse(), names = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);
    const said = document.createElement("p");
    said.className = "at";
    said.setAttribute("aria-live", "polite");
    plot.after(said);
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", `${figure.querySelector("b").textContent}: left and right arrow keys read it`);
    plot.show = (at) => {
      plot.querySelectorAll(".cursor").forEach((each) => each.remove());
      if (!(at >= 0 && at < rows.length)) { delete plot.dataset.at; said.textContent = ""; return; }
      plot.dataset.at = at;
      for (const svg of plot.querySelectorAll("svg")) {
        const [left, step, bottom] = svg.dataset.steps.split(",").map(Number), x = left + step * (at + 0.5);
        const line = document.createElementNS(SVG, "line");
        for (const [name, value] of [["x1", x], ["x2", x], ["y1", 10], ["y2", bottom]]) line.setAttribute(name, value);
        line.setAttribute("class", "cursor");
        svg.append(line);
      }
      const cells = [...rows[at].cells].map((cell) => cell.textContent);
      said.textContent = `${cells[0]}: ` + names.map((name, place) => `${name} ${cells[place + 1]}`).filter((_, place) => !["0", "-"].includes(cells[place + 1]) || names.length === 1).join(", ");
    };
    plot.addEventListener("pointermove", (event) => {
      const svg = [...plot.querySelectorAll("svg")].find((each) => each.getClientRects().length), box = svg.getBoundingClientRect();
      const [left, step] = svg.dataset.steps.split(",").map(Number), x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      plot.show(Math.min(rows.length - 1, Math.max(0, Math.floor((x - left) / step))));
    });
    plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot) plot.show(-1); });
    plot.addEventListener("focus", () => { if (plot.dataset.at === undefined) plot.show(rows.length - 1); });
    plot.addEventListener("blur", () => plot.show(-1));
    plot.addEventListener("keydown", (event) => {
      const here = Number(plot.dataset.at ?? rows.length - 1), far = Math.max(1, Math.round(rows.length / 10));
      const to = {ArrowLeft: here - 1, ArrowRight: here + 1, PageUp: here - far, PageDown: here + far, Home: 0, End: rows.length - 1}[event.key];
      if (to !== undefined) { event.preventDefault(); plot.show(Math.min(rows.length - 1, Math.max(0, to))); }
    });
  };
  const prepare = () => document.querySelectorAll(".plot").forEach(readable);

  prepare();
  setInterval(again, AGAIN_MS);
  document.addEventListener("visibilitychange", again);
})();
