"""The base of all declarations in Python and YAML, which pydantic validates.

An error is one sentence. `shard_stream` and the other modules with settings use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass as plain_dataclass
from typing import Any, ClassVar, Self, TypeVar, cast

import pydantic
from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs, CoreSchema, core_schema
from typing_extensions import dataclass_transform

from dagster_leasehold.lease_store.errors import InvalidSetting, plain_reason, shown, suggestion

T = TypeVar("T")
POSITIVE = Field(gt=0)
NOT_NEGATIVE = Field(ge=0)
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_MISSING = ("missing", "missing_argument")


@dataclass_transform(frozen_default=True, field_specifiers=(Field, pydantic.fields.Field))
def declared(class_: type[T]) -> type[T]:
    """Make a class a frozen dataclass that validates its values.

    The docstring below a field describes the field. If the type of a field is a declared class,
    a mapping given for it becomes an instance of that class.
    """
    config = ConfigDict(arbitrary_types_allowed=True, use_attribute_docstrings=True, extra="forbid")
    return cast(type[T], dataclass(frozen=True, config=config)(class_))


@plain_dataclass(frozen=True, slots=True)
class Validator:
    """An annotation of a field that a function validates, instead of pydantic.

    Attributes:
        validate: converts the given value to the stored one.
        schema: the JSON schema of the value in YAML.
    """

    validate: Callable[[Any, ValidationInfo], Any]
    schema: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, *_: object) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return dict(self.schema)


@declared
class Declared:
    """The base of declared classes.

    Attributes:
        kind: the kind of declaration, such as `Stream`, which begins its messages; empty if
            declarations of this class have no name.

    Raises:
        InvalidSetting: a setting is missing or unknown, or its value is not valid; the message
            names it.
    """

    kind: ClassVar[str] = ""

    @model_validator(mode="wrap")
    @classmethod
    def _validate(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            raise InvalidSetting(f"{cls._title(values)}{refusal(error, cls)}") from None
        except InvalidSetting as error:
            raise InvalidSetting(f"{cls._title(values)}{error}") from None

    @classmethod
    def _title(cls, values: Any) -> str:
        """Return the beginning of an error message; a declaration's name is its first argument."""
        if not cls.kind:
            return ""
        if isinstance(values, ArgsKwargs):
            fields = {**(values.kwargs or {}), **({"name": values.args[0]} if values.args else {})}
        else:
            fields = values if isinstance(values, Mapping) else {}
        return f"{cls.kind} {shown(fields.get('name', ''))}: "


def refusal(error: ValidationError, declared_class: type[Any]) -> str:
    """Return pydantic's first error as a sentence."""
    first = error.errors(include_url=False)[0]
    setting = ".".join(str(part) for part in first["loc"])
    type_, limits = first["type"], first.get("ctx", {})
    if type_ in _UNKNOWN:
        names = declared_class.__pydantic_fields__
        return f"{shown(setting)} is not a setting: {suggestion(setting, names)}"
    if type_ in _MISSING:
        return f"{setting} is missing."
    match type_:
        case "greater_than":
            advice = "a positive number"
        case "greater_than_equal":
            advice = "0 or a positive number"
        case "literal_error" | "enum":
            advice = limits["expected"]
        case _:
            return f"{setting} is not valid: {plain_reason(first['msg'])}."
    value = first["input"]
    return f"{setting} is {shown(value) if isinstance(value, str) else value}: use {advice}."
