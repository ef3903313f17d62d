"""Writes docs/reference/command-line.md from the command line itself.

python -m tests.unit.docs.command_line_page
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "command-line.md"
_HEAD = """\
# Command line

<!-- Written by `python -m tests.unit.docs.command_line_page`: change the commands instead. -->

`leasehold COMMAND --help` prints the same. Read commands take `--json`. Exit codes: 0 done, 1 a
check failed, 2 your mistake, told in one sentence on standard error; see
[states and reasons](states.md#exit-codes-of-the-command-line).
"""


def root() -> Any:
    """The command tree."""
    from orchestration.command_line import app

    return typer.main.get_command(app)


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
        if parameter.param_type_name == "argument":
            many = " …" if parameter.nargs != 1 else ""
            name = parameter.metavar or parameter.name.upper()
            yield f"{name.strip('[].').upper()}{many}", text
        else:
            names = [*parameter.opts, *parameter.secondary_opts]
            value = "" if parameter.is_flag else " " + _value(parameter)
            yield f"{', '.join(names)}{value}", text


def _value(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(choice.value) for choice in kind)
    return parameter.metavar or {
        int: "N",
        float: "X",
        str: "TEXT",
    }.get(kind, "PATH")


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for path, command in commands(root()):
        parts.append(f"\n## leasehold {' '.join(path)}\n\n{_paragraphs(command.help or '')}\n")
        rows = [f"| `{_escape(name)}` | {_escape(text)} |" for name, text in options(command)]
        if rows:
            parts.append("\n| | |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "".join(parts)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
