"""Writes a project's streams as `leasehold init` does: a module, and settings that name it.

Each declaration is a module with a different name, because Python caches imported modules.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from dagster_leasehold.orchestration.project_module import SETTINGS_FILE


def stream_text(
    name: str, source: str = "local_log", *, options: dict[str, Any] | None = None, **settings: str
) -> str:
    """Return the declaration of a stream in Python.

    Args:
        name: of the stream.
        source: the kind of its source.
        options: of the source.
        settings: further ones, as texts of Python.
    """
    named = ", ".join([repr(source), repr(name), f"**{options or {}!r}"])
    further = "".join(f", {setting}={text}" for setting, text in settings.items())
    return f"ShardStream({name!r}, named_source({named}){further})"


def declare(folder: Path, *streams: str, settings: str = "", before: str = "") -> str:
    """Have a folder declare streams, and no others; return the name of the module.

    Args:
        folder: a home, or a project.
        streams: names, or texts of Python.
        settings: further lines of `leasehold.toml`.
        before: lines of the module before the streams.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = [text if "(" in text else stream_text(text) for text in streams]
    listed = "".join(f"    {text},\n" for text in texts)
    text = f"from dagster_leasehold import *\n{before}\nstreams = [\n{listed}]\n"
    module = f"streams_{sha256(f'{folder.absolute()}{text}'.encode()).hexdigest()[:8]}"
    (folder / f"{module}.py").write_text(text, "utf-8")
    (folder / SETTINGS_FILE).write_text(f'module = "{module}"\n{settings}', "utf-8")
    return module
