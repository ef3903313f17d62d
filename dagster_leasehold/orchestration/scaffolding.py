"""The text of settings for people to fill in: each with its meaning, and commented out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from inspect import cleandoc
from textwrap import wrap
from typing import Any

from pydantic.fields import FieldInfo

from dagster_leasehold.assets.declared import TakenBy

COLUMNS = 92


@dataclass(frozen=True, slots=True)
class Form:
    """How a language writes settings.

    Attributes:
        separator: between a setting and its value.
        end: behind a value.
        begin_part: of a part and its class, to the line before the settings of the part.
        end_part: the line behind them, if there is one.
        empty_parts: a part may have no settings, so that only these are commented out.
        value: from a value to its text.
    """

    separator: str
    end: str
    begin_part: Callable[[str, type[Any]], str]
    end_part: str
    empty_parts: bool
    value: Callable[[Any], str]


def _yaml(value: Any) -> str:
    return "''" if value is None else json.dumps(value, ensure_ascii=False)


def quoted(value: object) -> str:
    """Return a value as Python writes it, with texts in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(quoted, value))}]"
    return repr(value)


YAML = Form(": ", "", lambda name, _: f"{name}:", "", False, _yaml)
PYTHON = Form("=", ",", lambda name, part: f"{name}={part.__name__}(", "),", True, quoted)


def written_settings(
    model: type[Any],
    values: Mapping[str, str],
    form: Form,
    *,
    left_out: Collection[str] = (),
    commented: bool = True,
) -> Iterator[str]:
    """Yield the lines of the settings of a class.

    Args:
        model: a class that pydantic checks, whose fields have docstrings, or whose own docstring
            has a section `Attributes`.
        values: the texts of settings that are given, and not commented out.
        form: how they are written.
        left_out: settings that are not written.
        commented: settings that can be left out are commented out.
    """
    for name, field, meaning in settings_in(model):
        if name in left_out:
            continue
        yield from (f"# {line}" for line in wrap(meaning, COLUMNS - 2))
        part = part_of(field)
        if name not in values and part is not None:
            lines = written_settings(part, {}, form, commented=form.empty_parts)
            text = [form.begin_part(name, part), *(f"    {line}" for line in lines)]
            text += [form.end_part] if form.end_part else []
            out = not form.empty_parts
        else:
            value = values.get(name) or form.value(_example(field))
            text = f"{name}{form.separator}{value}{form.end}".splitlines()
            out = commented and name not in values and not field.is_required()
        yield from (f"# {line}" if out else line for line in text)


def settings_in(model: type[Any]) -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield the fields of a class, each with its name and its meaning, which is a sentence."""
    _, _, section = cleandoc(model.__doc__ or "").partition("Attributes:\n")
    entries: list[tuple[str, str]] = re.findall(
        r"^    (\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE
    )
    meanings = dict(entries)
    checked: Mapping[str, FieldInfo] | None = getattr(model, "__pydantic_fields__", None)
    if checked is None:
        checked = {each.name: FieldInfo(default=each.default) for each in fields(model)}
    for name, field in checked.items():
        meaning = " ".join((field.description or meanings.get(name, "")).split())
        yield name, field, meaning[:1].upper() + meaning[1:]


def part_of(field: FieldInfo) -> type[Any] | None:
    """Return the class whose settings are parts of a field; None for a single value."""
    taken = any(isinstance(each, TakenBy) for each in field.metadata)
    class_: Any = field.annotation
    return class_ if isinstance(class_, type) and is_dataclass(class_) and not taken else None


def default_of(field: FieldInfo) -> Any:
    """Return a field's default as plain values, or None if the field is required."""
    value: Any = None if field.is_required() else field.get_default(call_default_factory=True)
    if isinstance(value, frozenset | tuple):
        return sorted(value) if isinstance(value, frozenset) else [*value]
    return value.value if isinstance(value, Enum) else value


def _example(field: FieldInfo) -> Any:
    """Return a field's default, or its example if the default says nothing."""
    default = default_of(field)
    return field.examples[0] if default in (None, []) and field.examples else default
