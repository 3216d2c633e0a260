"""Dialogs over the screen: confirmations, and texts to scroll through.

There are no buttons: Enter goes on and Esc leaves, so that they need no mouse and no characters that a simple terminal
lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Checkbox, Input, RadioButton, RadioSet, Static

from bftd.base.errors import ConfigError
from bftd.config import keys
from bftd.protocol.fields import printable

_LEAVE: list[BindingType] = [Binding("escape", "leave", "Back")]


class _Tick(Checkbox):
    """A check box, drawn with characters that every terminal has."""

    BUTTON_LEFT = BUTTON_RIGHT = ""

    def render(self) -> Content:
        """Draw the box empty if it is not ticked: not every terminal shows colours."""
        self.BUTTON_INNER = "[x]" if self.value else "[ ]"
        return super().render()


class _Choice(RadioButton):
    """A radio button, drawn in the same way."""

    BUTTON_LEFT = BUTTON_RIGHT = ""

    def render(self) -> Content:
        """Draw the button empty if it is not chosen."""
        self.BUTTON_INNER = "(*)" if self.value else "( )"
        return super().render()


class TextDialog(ModalScreen[None]):
    """A text to scroll through."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *_LEAVE,
        Binding("q", "leave", show=False),
        Binding("enter", "leave", show=False),
        Binding("j", "down", show=False),
        Binding("k", "up", show=False),
    ]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title = printable(title)
        self._text = text

    def compose(self) -> ComposeResult:
        """Compose a heading, the text, and the keys."""
        with Vertical(classes="page"):
            yield Static(Text(self._title, style="bold"), classes="heading")
            with VerticalScroll(id="scroll"):
                yield Static(self._text, id="text")
            yield Static(Text("arrows and PgUp, PgDn scroll; Esc goes back", style="dim"), classes="hint")

    def on_mount(self) -> None:
        """Focus the text, and scroll to its end: the newest is last."""
        if not self.is_attached:  # the program is ending, so nothing was composed
            return
        scroll = self.query_one("#scroll", VerticalScroll)
        scroll.focus()
        self.call_after_refresh(scroll.scroll_end, animate=False)

    def show_text(self, text: Text) -> None:
        """Replace the text."""
        self._text = text
        if self.is_mounted:
            self.query_one("#text", Static).update(text)

    def action_leave(self) -> None:
        """Go back."""
        self.dismiss(None)

    def action_down(self) -> None:
        """Scroll down a line."""
        self.query_one("#scroll", VerticalScroll).scroll_down(animate=False)

    def action_up(self) -> None:
        """Scroll up a line."""
        self.query_one("#scroll", VerticalScroll).scroll_up(animate=False)


class PauseDialog(ModalScreen["dict[str, Any] | None"]):
    """A dialog that asks what to pause and why, and then for confirmation; returns None if it is left."""

    AUTO_FOCUS = "#why"  # it has to be typed
    BINDINGS: ClassVar[list[BindingType]] = [*_LEAVE, Binding("enter", "go_on", "Go on", priority=True)]

    def __init__(self, choices: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__()
        self._choices = dict(choices)
        self._sure = ""

    def compose(self) -> ComposeResult:
        """Compose the choices, the reason, and whether nodes are asked back."""
        with Vertical(classes="dialog"):
            yield Static(Text("Pause: lend no more nodes", style="bold"), classes="heading")
            with RadioSet(id="what"):
                for at, label in enumerate(self._choices):
                    yield _Choice(Content(printable(label)), value=at == 0)
            yield Input(placeholder="why: users read it in bft status", id="why", max_length=200)
            yield _Tick("also ask back what is lent", id="release")
            hint = "Enter goes on, Tab moves, Space ticks, Esc leaves"
            yield Static(Text(hint, style="dim"), classes="hint", id="hint")

    def on_input_changed(self) -> None:
        """Drop the confirmation: it was for another reason."""
        self._sure = ""

    def action_go_on(self) -> None:
        """Ask for confirmation, then pause; Enter does this wherever the focus is, and never ticks a box."""
        why = self.query_one("#why", Input).value.strip()
        label = list(self._choices)[max(0, self.query_one("#what", RadioSet).pressed_index)]
        release = self.query_one("#release", _Tick).value
        if not why:
            self._hint("give the reason: those who will wait read it")
            return
        choice = f"{label}/{why}/{release}"
        if self._sure != choice:
            self._sure = choice
            back = " and asks back what is lent" if release else ""
            self._hint(f"Enter once more pauses {label}{back}, Esc leaves")
            return
        self.dismiss({"why": why, "release": release, **self._choices[label]})

    def action_leave(self) -> None:
        """Change nothing."""
        self.dismiss(None)

    def _hint(self, text: str) -> None:
        self.query_one("#hint", Static).update(Text(printable(text), style="bold" if self._sure else "dim"))


class Confirm(ModalScreen[bool]):
    """A dialog with one question: Enter or y confirms, Esc or n does not."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "leave", "No"),
        Binding("enter,y", "do", "Yes"),
    ]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Compose the question and both answers."""
        with Vertical(classes="dialog"):
            yield Static(Text(printable(self._title), style="bold"), classes="heading")
            yield Static(self._text)
            yield Static(Text("Enter or y does it, Esc or n leaves", style="dim"), classes="hint")

    def action_leave(self) -> None:
        """Change nothing."""
        self.dismiss(False)

    def action_do(self) -> None:
        """Confirm."""
        self.dismiss(True)


class TuneDialog(ModalScreen["dict[str, Any] | None"]):
    """A dialog with a field for each tunable key; returns the changed ones, None if it is left."""

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = _LEAVE

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._settings = dict(settings)
        self._known = {key.name: key for key in keys.tunable()}
        self._sure: dict[str, Any] = {}

    def compose(self) -> ComposeResult:
        """Compose the keys with their present values."""
        with Vertical(classes="dialog"):
            yield Static(Text("Tune: acts at once and survives a restart", style="bold"), classes="heading")
            with VerticalScroll(classes="fields"):
                for name, value in self._settings.items():
                    with Vertical(classes="field"):
                        yield Static(Text(printable(name)), classes="label")
                        yield Input(str(value), id=f"key-{name}", max_length=40)
            yield Static("", id="about")
            yield Static(Text("Tab moves, Enter goes on, Esc leaves", style="dim"), classes="hint", id="hint")

    def on_descendant_focus(self) -> None:
        """Show the description of the focused key."""
        name = (self.focused.id or "").removeprefix("key-") if self.focused is not None else ""
        about = self._known[name].doc if name in self._known else ""
        self.query_one("#about", Static).update(Text(printable(about), style="italic"))

    def on_input_changed(self) -> None:
        """Drop the confirmation: it was for other values."""
        self._sure = {}

    def on_input_submitted(self) -> None:
        """Check the values, ask for confirmation, then return them."""
        try:
            changed = self._changed()
        except ConfigError as error:
            self._hint(str(error))
            return
        if not changed:
            self._hint("nothing is changed yet")
        elif changed != self._sure:
            self._sure = changed
            changes = ", ".join(f"{name} {self._settings[name]} to {value}" for name, value in changed.items())
            self._hint(f"Enter once more changes {changes}; Esc leaves")
        else:
            self.dismiss(changed)

    def _changed(self) -> dict[str, Any]:
        changed = {}
        for name, before in self._settings.items():
            text = self.query_one(f"#key-{name}", Input).value.strip()
            if text != str(before):
                changed[name] = _value(text, before, self._known[name].checked if name in self._known else None, name)
        return {name: value for name, value in changed.items() if value != self._settings[name]}

    def action_leave(self) -> None:
        """Change nothing."""
        self.dismiss(None)

    def _hint(self, text: str) -> None:
        self.query_one("#hint", Static).update(Text(printable(text), style="bold" if self._sure else "dim"))


def _value(text: str, before: Any, check: Callable[[object, str], Any] | None, name: str) -> Any:
    """Convert a text to the type of a key's value; raises ConfigError."""
    value: Any = text
    if isinstance(before, (int, float)) and not isinstance(before, bool):
        try:
            value = float(text)
        except ValueError:
            raise ConfigError(f"{name} must be a number, not {text!r}") from None
        value = int(value) if isinstance(before, int) and value == int(value) else value
    return value if check is None else check(value, name)
