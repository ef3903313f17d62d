"""Writes docs/reference/command-line.md from the command line itself.

python -m tests.unit.docs.command_line_page
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from tests.unit.docs.command_scene import Outputs, play
from tests.unit.docs.recorded_output import RECORDED

MEASURING = ("version", "compact", "vacuum", "group drain")
"""Commands that print sizes of files, versions, or seconds."""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "command-line.md"
_HEAD = """\
# Command line

<!-- Written by `python -m tests.unit.docs.command_line_page`: change the commands instead. -->

`leasehold -h` lists the commands by what they are for, `leasehold COMMAND --help` prints what is
said here, and `leasehold --version` prints the version. Under each command stands what it printed
in one small deployment: a log of two shards with six records, the last of which the transform
refused.

**JSON.** Every command that ends takes `--json` and then prints one JSON document; `cat` prints one
line a record. Commands that run until Ctrl-C have no such option.

**Exit codes.** 0 done, 1 a check failed, 2 your mistake, told in one sentence on standard error;
see [states and reasons](states.md#exit-codes-of-the-command-line).

**Tables** are at most 100 columns wide, less where the terminal is narrower.

**Progress** of long work is a bar on standard error while it lasts, where that is a terminal.
`group drain` prints lines elsewhere.

**Shell completion.** `leasehold --install-completion` sets it up for the shell that you are in
(bash, zsh, fish or PowerShell) and says where; it completes commands, options and the names of
declared streams. `leasehold --show-completion` prints the script instead.
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
    return parameter.metavar or {int: "N", float: "X", str: "TEXT"}.get(kind, "PATH")


def real_outputs() -> Outputs:
    """Return the output of each command: played now, or recorded and checked by its own test."""
    with tempfile.TemporaryDirectory() as folder:
        return RECORDED | play(Path(folder))


def comparable(text: str) -> str:
    """A page without what a release of another library, or the time of day, changes in it."""
    parts = re.split(r"(?m)^(?=## )", text)
    for number, part in enumerate(parts):
        if part.startswith(tuple(f"## leasehold {name}\n" for name in MEASURING)):
            parts[number] = re.sub(r"[ ─]+", " ", re.sub(r"\d[\d,.]*", "0", part))
    return "".join(parts)


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    outputs = real_outputs()
    for path, command in commands(root()):
        parts.append(f"\n## leasehold {' '.join(path)}\n\n{_paragraphs(command.help or '')}\n")
        rows = [f"| `{_escape(name)}` | {_escape(text)} |" for name, text in options(command)]
        if rows:
            parts.append("\n| | |\n|---|---|\n" + "\n".join(rows) + "\n")
        parts += [
            f"\n```console\n$ {command}\n{output}\n```\n"
            for words, (command, output) in outputs.items()
            if words[: len(path)] == path
        ]
    return "".join(parts)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
