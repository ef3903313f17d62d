"""The text of settings for people to fill in: each with its meaning, and commented out."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from inspect import cleandoc
from textwrap import wrap
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

COLUMNS = 96


def written_settings(
    model: type[BaseModel],
    values: Mapping[str, Any],
    *,
    separator: str,
    left_out: Collection[str] = (),
) -> Iterator[str]:
    """Yield the lines of a model's settings.

    Args:
        model: whose fields have descriptions, or whose docstring has a section `Attributes`.
        values: settings that are given, and not commented out. Required ones that are not among
            them are given by their example.
        separator: between a setting and its value: ` = ` in TOML, `: ` in YAML.
        left_out: settings that are not written.
    """
    meanings = _attributes(model)
    for name, field in model.model_fields.items():
        if name in left_out:
            continue
        meaning = field.description or meanings.get(name, "")
        yield from (f"# {line}" for line in wrap(meaning, COLUMNS - 2))
        given = name in values or field.is_required()
        value = values[name] if name in values else _shown(field)
        yield f"{'' if given else '# '}{name}{separator}{_text(value)}"


def _attributes(model: type[BaseModel]) -> dict[str, str]:
    """Return the meanings of attributes that the docstring of their class tells."""
    _, _, section = cleandoc(model.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _shown(field: FieldInfo) -> Any:
    default = None if field.is_required() else field.default
    return field.examples[0] if default in (None, []) and field.examples else default


def _text(value: Any) -> str:
    """Return a value as TOML and YAML both read it, in one line."""
    if value is None:
        return '""'
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name} = {_text(each)}" for name, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return json.dumps(value.value if isinstance(value, Enum) else value, ensure_ascii=False)
