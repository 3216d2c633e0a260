"""The layout of the screen: for 80 x 24, and with more side by side on larger terminals."""

from __future__ import annotations

CSS = """
Screen { layout: vertical; }
Static { text-wrap: nowrap; }
#head, #bar, #legend { height: 1; padding: 0 1; }
#notices { height: auto; max-height: 4; padding: 0 1; text-wrap: wrap; }
#notices.empty, #message.empty { display: none; }
#sets { height: auto; max-height: 10; padding: 0 1; display: none; }
#trainers { height: 1fr; min-height: 4; padding: 0 1; scrollbar-size-vertical: 1; }
#trainers > .datatable--header { background: $surface; color: $text-muted; text-style: bold; }
#none { height: 1fr; padding: 1 2; display: none; color: $text-muted; }
#detail { height: 8; border-top: solid $primary; }
#facts { width: 1fr; height: 100%; padding: 0 1; }
#curve { width: 1fr; height: 100%; padding: 0 1; }
#feed { height: 4; border-top: solid $primary; padding: 0 1; text-wrap: wrap;
  border-title-color: $text-muted; }
#message { height: auto; max-height: 2; padding: 0 1; background: $primary-darken-2; text-wrap: wrap; }
#filter { display: none; height: 1; border: none; background: $surface; padding: 0 1; }
#filter.open { display: block; }
.tall #sets { display: block; }
.tall #detail { height: 10; }
.tall #feed { height: 8; }
.wide #below { layout: horizontal; height: 18; }
.wide #detail { height: 100%; width: 3fr; }
.wide #feed { height: 100%; width: 2fr; }
.short #feed { height: 3; }
.short #detail { display: none; }
#below { height: auto; }
ModalScreen { align: center middle; }
.page { width: 100%; height: 100%; background: $surface; padding: 0 1; }
.page VerticalScroll { height: 1fr; }
.page DataTable { height: 1fr; }
.page #text { text-wrap: wrap; }
.dialog { width: 76; max-width: 100%; height: auto; max-height: 100%; background: $surface; border: solid $primary;
  padding: 0 1; }
.dialog Input { border: none; height: 1; background: $background; padding: 0 1; }
.dialog Input:focus { background: $primary-darken-2; }
.dialog RadioSet { border: none; width: 100%; background: $surface; padding: 0; }
.dialog Checkbox { border: none; background: $surface; padding: 0; }
.dialog .toggle--button { color: $text; background: $surface; }
.dialog Static { text-wrap: wrap; }
.fields { height: auto; max-height: 12; }
.field { layout: horizontal; height: 1; }
.field .label { width: 24; }
.field Input { width: 1fr; }
.heading { height: auto; }
.hint { height: auto; }
"""


def css(plain: bool) -> str:
    """Return the style sheet; with `plain`, lines are drawn with characters that every terminal has."""
    return CSS.replace(": solid ", ": ascii ") if plain else CSS
