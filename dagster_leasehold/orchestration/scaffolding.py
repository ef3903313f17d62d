"""Templates of settings: each setting has a comment, and optional settings are commented out."""

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

from dagster_leasehold.assets.declared import Validator

COLUMNS = 92


@dataclass(frozen=True, slots=True)
class Form:
    """The syntax of settings in a language.

    Attributes:
        begin_part: returns the first line of a part, for its name and class.
        end_part: the last line of a part; empty if the language has none.
        empty_parts: True if a part without settings is valid; then only its settings are commented
            out.
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
    """Return a value as a Python literal, with texts in double quotes."""
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
    omitted: Collection[str] = (),
    commented: bool = True,
) -> Iterator[str]:
    """Yield the lines of the settings of a class.

    Args:
        model: a pydantic model or dataclass. Its fields have docstrings, or its own docstring has a
            section `Attributes`.
        values: the texts of the settings that are not commented out.
    """
    for name, field, meaning in settings_in(model):
        if name in omitted:
            continue
        yield from (f"# {line}" for line in wrap(meaning, COLUMNS - 2))
        part = part_of(field)
        if name not in values and part is not None:
            lines = written_settings(part, {}, form, commented=form.empty_parts)
            text = [form.begin_part(name, part), *(f"    {line}" for line in lines)]
            text += [form.end_part] if form.end_part else []
            optional = not form.empty_parts
        else:
            value = values.get(name) or form.value(_example(field))
            text = f"{name}{form.separator}{value}{form.end}".splitlines()
            optional = commented and name not in values and not field.is_required()
        yield from (f"# {line}" if optional else line for line in text)


def settings_in(model: type[Any]) -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield the name, the field and the meaning of each setting of a class."""
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
    """Return the class of a field that groups settings; None for a single value."""
    single = any(isinstance(each, Validator) for each in field.metadata)
    class_: Any = field.annotation
    return class_ if isinstance(class_, type) and is_dataclass(class_) and not single else None


def default_of(field: FieldInfo) -> Any:
    """Return a field's default in JSON types; None if the field is required."""
    value: Any = None if field.is_required() else field.get_default(call_default_factory=True)
    if isinstance(value, frozenset | tuple):
        return sorted(value) if isinstance(value, frozenset) else [*value]
    return value.value if isinstance(value, Enum) else value


def _example(field: FieldInfo) -> Any:
    """Return a field's default, or its example if the default is None or empty."""
    default = default_of(field)
    return field.examples[0] if default in (None, []) and field.examples else default
