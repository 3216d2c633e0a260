"""The site's way to start a command inside a user's container image: a template of words, never given to a shell.

A template is a preset's name, or words as a shell would split them, with placeholders in braces:

    {image}    the user's image, also as a part of a word
    {cwd}      the working folder, also as a part of a word
    {binds}    all folders that must exist inside, as FOLDER:FOLDER,FOLDER:FOLDER
    {bind}     one of them, as FOLDER:FOLDER; its word is repeated for each
    {command}  a word of its own: the command to run inside
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from bftd.protocol.bounds import TEXT_MOST

PRESETS: Mapping[str, str] = {
    "apptainer": "apptainer exec --nv --pwd {cwd} --bind {binds} {image} {command}",
    # --set-env takes the variables that the image's Dockerfile set, PATH among them; --write-fake makes the mount
    # points.
    "charliecloud": "ch-run --write-fake --set-env --bind={bind} --cd={cwd} {image} -- {command}",
    "pyxis": "srun --container-image={image} --container-mounts={binds} --container-workdir={cwd} "
    "--no-container-mount-home --no-container-remap-root --no-container-entrypoint {command}",
}
"""The template of each runtime that the site can choose by name alone."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_KNOWN = ("image", "cwd", "binds", "bind", "command")
_SEPARATORS = re.compile(r"[,:\s]")
_HINT = re.compile(r"Try .*--(help|usage)")


def words(template: str) -> tuple[str, ...]:
    """Return the words of a template or preset; raises ValueError with one line that says what is wrong."""
    try:
        found = tuple(shlex.split(PRESETS.get(template, template)))
    except ValueError as error:
        raise ValueError(f"it does not split into words ({str(error).lower()}); close every quote") from None
    if len(found) < 2:
        near = ", ".join(PRESETS)
        raise ValueError(f"{template!r} is neither {near} nor a command with {{image}} and {{command}} in it")
    names = [name for word in found for name in _PLACEHOLDER.findall(word)]
    if unknown := [name for name in names if name not in _KNOWN]:
        known = ", ".join(f"{{{name}}}" for name in _KNOWN)
        raise ValueError(f"{{{unknown[0]}}} is no placeholder; known: {known}")
    if any("{" in rest or "}" in rest for rest in (_PLACEHOLDER.sub("", word) for word in found)):
        raise ValueError("a brace stands alone; placeholders are written as {image}")
    if names.count("image") != 1:
        raise ValueError("{image} must stand in it once")
    if found.count("{command}") != 1 or names.count("command") != 1:
        raise ValueError("{command} must stand in it once, as a word of its own")
    if names.count("bind") + names.count("binds") != 1:
        raise ValueError("{bind} or {binds} must stand in it once: the script's folders have to be there inside")
    if "{" in found[0]:
        raise ValueError("its first word must be the container runtime")
    if "{bind}" in found:
        raise ValueError("{bind} must stand in one word with its option, as in --bind={bind}: the word is repeated")
    return found


def check(template: str) -> None:
    """Raise ValueError for a template that cannot be used; "" means a site without containers."""
    if len(template) > TEXT_MOST:
        raise ValueError(f"it is longer than {TEXT_MOST} letters; put it into a script")
    if template:
        words(template)


def is_step(template: str) -> bool:
    """Whether Slurm makes the container for a job step (Pyxis): the first word is srun."""
    return words(template)[0].rpartition("/")[2] == "srun"


def command(template: str, image: str, cwd: str, binds: Sequence[str], inside: Sequence[str]) -> list[str]:
    """Return the words that run `inside` in the image, with the folders `binds` at the same paths as on the host.

    Raises ValueError for an image or a folder that would be read as something else.
    """
    if image.startswith("-"):
        raise ValueError(f"container={image}: an image does not begin with a hyphen")
    if odd := [path for path in binds if _SEPARATORS.search(path)]:
        raise ValueError(
            f"the folder {odd[0]!r} cannot be named to a container runtime; use one without , : and blanks"
        )
    pairs = [f"{path}:{path}" for path in binds]
    values = {"image": image, "cwd": cwd, "binds": ",".join(pairs)}
    made: list[str] = []
    for word in words(template):
        if word == "{command}":
            made += inside
        elif "{bind}" in word:
            made += [word.replace("{bind}", pair) for pair in pairs]
        else:
            # All at once, so that nothing in a value is taken for a placeholder.
            made.append(_PLACEHOLDER.sub(lambda match: values[match[1]], word))
    return made


def last_of(lines: Sequence[str]) -> str:
    """Return the last informative line of a runtime: neither empty nor a hint at its help."""
    return next((line.strip() for line in reversed(lines) if line.strip() and not _HINT.match(line.strip())), "")


def failed(image: str, lines: Sequence[str]) -> str:
    """Explain why an image did not start, by the lines that its runtime printed, and what to do."""
    # srun's own last line is that a task has ended
    line = last_of([line for line in lines if not line.strip().startswith("srun: ")]) or last_of(lines)
    # ch-run and others print their process id first, but all nodes should print the same
    why = re.sub(r"\[\d+\]", "", line) or "its runtime said nothing"
    return f"container={image} did not start: {why}; name an image with Python that every node can read"


def outermost(paths: Sequence[str], shared: Sequence[str] = ()) -> list[str]:
    """Return those folders that lie in no other one and in no `shared` one, each once and in order."""
    kept: list[str] = []
    for path in sorted({path.rstrip("/") or "/" for path in paths}):
        if not any(path == above or path.startswith(above.rstrip("/") + "/") for above in (*kept, *shared)):
            kept.append(path)
    return kept
