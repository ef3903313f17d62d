"""Writes docs/reference/command-line.md from the command line itself.

python -m tests.unit.docs.command_line_page
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from tests.unit.docs.command_scene import Outputs, play
from tests.unit.docs.recorded_output import RECORDED

MEASURING = ("version", "compact", "vacuum", "group drain")
"""Commands that print sizes of files, versions, or seconds."""
LINES_SHOWN: dict[tuple[str, ...], int] = {
    **dict.fromkeys((("stop",), ("top",), ("group", "list"), ("group", "show")), 0),
    **dict.fromkeys((("checkpoint", "get"), ("shard", "list"), ("quarantine", "retry")), 0),
    ("doctor",): 5,
    ("db", "copy"): 6,
}
"""The number of lines that the page shows of an output that is long, or explains itself."""
WORTH_A_REFERENCE = 4
"""From this number of options on, the second command refers to the first."""
SELF_EVIDENT = ("The stream.", "The shard.")
"""Help of arguments whose names say as much."""
SHARED_BY = 4
"""An option of this many commands or more is explained once."""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "command-line.md"
_HEAD = """\
# Command line

<!-- Written by `python -m tests.unit.docs.command_line_page`: change the commands instead. -->

`leasehold COMMAND --help` prints what this page says. The examples come from a deployment whose log
has two shards and six records, and whose transform refused the last record. Short and self-evident
outputs are left out.

The exit code is 0 for success, 1 for a failed check or an error that you did not cause, and 2 for
your own mistake, such as an unknown option. Slow commands show their progress on standard error.
`leasehold --install-completion` sets up completion for your shell.

Most commands have some of these arguments and options:

"""


def root() -> Any:
    """Return the command tree, with every command loaded."""
    from dagster_leasehold.orchestration.command_line import COMMANDS, app, load_command

    tree: Any = typer.main.get_command(app)
    tree.commands |= {name: load_command(name) for name in COMMANDS}
    return tree


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands that do something, with the words that call them."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        if not child.hidden:
            yield from commands(child, (*path, name))


def options(command: Any) -> Iterator[tuple[str, str]]:
    """Options and arguments of a command with their meaning, in order."""
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        text = " ".join((getattr(parameter, "help", None) or "").split())
        if text in SELF_EVIDENT:
            continue
        if parameter.param_type_name == "argument":
            many = " …" if parameter.nargs != 1 else ""
            name = parameter.metavar or parameter.name.upper()
            yield f"{name.strip('[].').upper()}{many}", text
        else:
            names = [*parameter.opts, *parameter.secondary_opts]
            value = "" if parameter.is_flag else " " + _value(parameter)
            yield f"{', '.join(names)}{value}", text


def shared(rows: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Options that most commands have, with their meaning: the page explains them once."""
    return [row for row, count in rows.items() if count >= SHARED_BY]


def _value(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(choice.value) for choice in kind)
    return parameter.metavar or {int: "N", float: "X", str: "TEXT"}.get(kind, "PATH")


def real_outputs() -> Outputs:
    """Return the output of each command: played now, or recorded and checked by its own test."""
    with tempfile.TemporaryDirectory() as folder:
        return RECORDED | play(Path(folder))


def comparable(text: str) -> str:
    """Return a page without the parts that releases of other libraries or the time of day
    change.
    """
    parts = re.split(r"(?m)^(?=## )", text)
    for number, part in enumerate(parts):
        if part.startswith(tuple(f"## leasehold {name}\n" for name in MEASURING)):
            parts[number] = re.sub(r"[ ─]+", " ", re.sub(r"\d[\d,.]*", "0", part))
    return "".join(parts)


def page() -> str:
    """The whole page."""
    tree = root()
    once = shared(Counter(row for _, command in commands(tree) for row in options(command)))
    first = dict(reversed(once))
    parts = [_HEAD, *(_row(name, first.pop(name)) for name, _ in once if name in first)]
    outputs = real_outputs()
    shown: dict[tuple[tuple[str, str], ...], tuple[str, ...]] = {}
    explained: dict[tuple[str, str], tuple[str, ...]] = {}
    for path, command in commands(tree):
        parts.append(f"\n## leasehold {' '.join(path)}\n\n{_paragraphs(command.help or '')}\n")
        own = tuple(row for row in options(command) if row not in once)
        same = shown.setdefault(own, path)
        if same != path and len(own) >= WORTH_A_REFERENCE:
            parts.append(f"\nTakes the options of `leasehold {' '.join(same)}`.\n")
        elif own:
            parts += ["\n", *_rows(own, path, explained)]
        for words, (call, output) in outputs.items():
            text = shortened(path, output)
            if words[: len(path)] == path and (text or call != f"leasehold {' '.join(path)}"):
                parts.append(f"\n```console\n$ {call}\n{text}```\n")
    return "".join(parts)


def shortened(path: tuple[str, ...], output: str) -> str:
    """Return what the page shows of an output: no single line, which only confirms the command."""
    lines = output.splitlines()
    shown = lines[: LINES_SHOWN.get(path, len(lines))]
    if len(lines) == 1 or not shown:
        return ""
    return "".join(f"{line}\n" for line in [*shown, *(["…"] if shown != lines else [])])


def _rows(
    rows: Sequence[tuple[str, str]],
    path: tuple[str, ...],
    explained: dict[tuple[str, str], tuple[str, ...]],
) -> Iterator[str]:
    """Yield a line for each row, and one for several that an earlier command explains."""
    again: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if explained.setdefault(row, path) != path:
            again.setdefault(explained[row], []).append(row[0])
    earlier = {command: names for command, names in again.items() if len(names) > 1}
    for row in rows:
        if explained[row] not in earlier:
            yield _row(*row)
    for command, names in earlier.items():
        named = ", ".join(f"`{name}`" for name in names)
        yield f"* {named}: as for `leasehold {' '.join(command)}`.\n"


def _row(name: str, text: str) -> str:
    return f"* `{name}`: {text}\n"


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
