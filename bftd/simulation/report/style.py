"""The look of the page: one palette for plots and text, light and dark, and the style sheet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Color:
    """A colour by its role; plots use `light` until it is replaced by a variable of the style sheet."""

    role: str
    light: str
    dark: str


# Lines and areas differ in lightness as well as in hue, after Okabe and Ito's palette for colour-blind readers.
PAPER = Color("paper", "#ffffff", "#14181d")
INK = Color("ink", "#1c2126", "#e6e9ec")
MUTED = Color("muted", "#57606a", "#a3adb8")
GRID = Color("grid", "#dfe3e8", "#2f363e")
OURS = Color("ours", "#0072b2", "#56b4e9")
EQUAL = Color("equal", "#d55e00", "#f0884a")
RIGID = Color("rigid", "#6b7280", "#98a2ae")
IDLE = Color("idle", "#d3dae1", "#3a434d")
RESIZE = Color("resize", "#a0487e", "#d88ab4")
PREEMPT = Color("preempt", "#c58a00", "#e8c340")
START = Color("start", "#e9cb4c", "#b39a2e")
COLORS = (PAPER, INK, MUTED, GRID, OURS, EQUAL, RIGID, IDLE, RESIZE, PREEMPT, START)

_LIGHT = "".join(f"--{color.role}:{color.light};" for color in COLORS)
_DARK = "".join(f"--{color.role}:{color.dark};" for color in COLORS)

# for a picture in a separate file
SVG_CSS = (
    f"svg {{ color-scheme: light dark; {_LIGHT} }} "
    f"@media (prefers-color-scheme: dark) {{ svg {{ {_DARK} }} }} "
    "text { font-family: system-ui, 'DejaVu Sans', sans-serif; }"
)

CSS = f"""
:root {{ color-scheme: light; {_LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {_DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 47.5rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; -webkit-text-size-adjust: 100%; }}
h1 {{ font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }}
h2 {{ font-size: 1.35rem; line-height: 1.25; margin: 3rem 0 .5rem; }}
h3 {{ font-size: 1.1rem; line-height: 1.3; margin: 2.25rem 0 .5rem; }}
article + article {{ border-top: 1px solid var(--grid); margin-top: 3rem; }}
p {{ margin: .5rem 0; max-width: 42rem; }}
a {{ color: var(--ours); }}
.lead {{ font-size: 1.1rem; }}
.subtle, figcaption, .cards dd.of {{ color: var(--muted); }}
.cards {{ display: grid; grid-template-columns: repeat(3, 1fr); gap: .75rem; margin: 1.5rem 0; }}
.cards > div {{ border: 1px solid var(--grid); border-top: 3px solid var(--ours); border-radius: 4px;
  padding: .75rem .875rem; break-inside: avoid; }}
.cards dt {{ font-size: .875rem; font-weight: 600; }}
.cards dd {{ margin: 0; font-size: 1.75rem; font-weight: 600; line-height: 1.3; font-variant-numeric: tabular-nums; }}
.cards dd.of {{ font-size: .8125rem; font-weight: 400; line-height: 1.4; }}
figure {{ margin: 1rem 0 .75rem; break-inside: avoid; }}
figure svg.plot {{ display: block; width: 100%; height: auto; margin: 0 auto; }}
svg.narrow {{ max-width: 26rem; }}
figure svg.plot.narrow {{ display: none; }}
svg text {{ font-family: system-ui, sans-serif; font-variant-numeric: tabular-nums; }}
figcaption {{ font-size: .9375rem; line-height: 1.5; margin-top: .5rem; max-width: 42rem; }}
.key {{ list-style: none; display: flex; flex-wrap: wrap; gap: .125rem 1.25rem; margin: 0 0 .5rem; padding: 0;
  font-size: .875rem; }}
.key svg {{ width: 1.75rem; height: .75rem; margin-right: .4rem; vertical-align: -.05rem; }}
.scroll {{ overflow-x: auto; margin: .75rem 0; }}
table {{ border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .875rem .3rem 0; text-align: right; border-bottom: 1px solid var(--grid);
  vertical-align: baseline; }}
th:last-child, td:last-child {{ padding-right: 0; }}
th:first-child {{ text-align: left; font-weight: 400; }}
thead th, thead th:first-child {{ font-weight: 600; vertical-align: bottom; }}
tr.here > * {{ font-weight: 600; }}
details {{ margin: .75rem 0; }}
summary {{ cursor: pointer; color: var(--muted); font-size: .875rem; }}
.notes {{ font-size: .875rem; color: var(--muted); padding-left: 1.25rem; max-width: 42rem; }}
dl.made {{ font-size: .875rem; }}
dl.made dt {{ font-weight: 600; margin-top: .75rem; }}
dl.made dd {{ margin: 0; overflow-wrap: anywhere; }}
code {{ font-family: ui-monospace, monospace; font-size: .92em; overflow-wrap: anywhere; }}
@media (max-width: 40rem) {{
  body {{ padding: 1.5rem 1rem 3rem; }}
  h1 {{ font-size: 1.6rem; }}
  figure svg.plot.wide {{ display: none; }}
  figure svg.plot.narrow {{ display: block; }}
  table {{ font-size: .8125rem; }}
  th, td {{ padding-right: .5rem; }}
  .cards {{ grid-template-columns: 1fr; }}
}}
@media print {{
  body {{ max-width: none; padding: 0; font-size: 10.5pt; }}
  h2, h3 {{ break-after: avoid; }}
  figure svg.plot.wide {{ display: block; }}
  figure svg.plot.narrow {{ display: none; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
  details::details-content {{ content-visibility: visible; block-size: auto; }}
}}
"""
