"""The declaration of checks of records that are about to be published."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo

from dagster_leasehold.assets.declared import NOT_NEGATIVE, Declared, Validator, declared
from dagster_leasehold.lease_store.errors import InvalidSetting, shown

if TYPE_CHECKING:
    import pyarrow as pa

OnFailure = Literal["hold", "quarantine", "warn"]
CheckFunction = Callable[[Any], object]
"""Takes a `pyarrow.Table`, and returns None, a bool, a reason or a boolean array."""
_NAME = re.compile(r"[A-Za-z0-9_]+")


def _function(value: Any, info: ValidationInfo) -> Any:
    """Return a function from its name `module.function` in YAML, or the given object in Python."""
    names: Any = info.context
    if names is not None and isinstance(value, str):
        return names.function("The function of a publication check", value)
    if value is not None and not callable(value):
        raise ValueError("give the function itself")
    return value


_FUNCTION = Validator(_function, {"type": ["string", "null"], "pattern": r"^\w+(\.\w+)+$"})


@declared
class PublicationCheck(Declared):
    """A check of committed records before they are published, by a function or a SQL predicate.

    `publication_check` creates one from a function. A predicate is written in Iceberg's filter
    syntax, such as `amount >= 0 and user is not null`. A record passes if it is true.

    Raises:
        InvalidSetting: the check has no valid name, or not exactly one of `sql` and `function`.
    """

    name: str = ""
    """The name of the check, also in Dagster; by default, the name of the function."""
    sql: Annotated[str, Field(examples=["amount >= 0"])] = ""
    """The predicate that every record must meet."""
    function: Annotated[CheckFunction | None, _FUNCTION, Field(examples=["checks.amounts"])] = None
    """The function of an Arrow table; see `publication_check`."""
    on_failure: OnFailure = "hold"
    """The handling of a batch that fails: `hold` it and the later batches of its shard, send the
    failed records to `quarantine`, or `warn` and publish it."""
    quarantined_max: Annotated[int, NOT_NEGATIVE] = 1_000
    """The most records of one batch that go to quarantine; with more, the batch is held."""

    def __post_init__(self) -> None:
        if not self.name and self.function is not None:
            object.__setattr__(self, "name", getattr(self.function, "__name__", ""))
        if not _NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"A publication check has the name {shown(self.name)}: use letters, digits and _."
            )
        if bool(self.sql) is (self.function is not None):
            raise InvalidSetting(
                f"The publication check {self.name} needs either sql or a function."
            )

    def __call__(self, records: pa.Table) -> object:
        """Return the result of the function for these records."""
        assert self.function is not None, "only a check of a function can be called"
        return self.function(records)

    @property
    def rule(self) -> str:
        """The rule of the check, for people."""
        own = self.sql or (getattr(self.function, "__doc__", None) or "").strip().split("\n")[0]
        return own or f"{self.name} passes"


def publication_check(
    function: CheckFunction | None = None,
    *,
    name: str = "",
    sql: str = "",
    on_failure: OnFailure = "hold",
    quarantined_max: int = 1_000,
) -> Any:
    """Turn a function of Arrow tables, or a SQL predicate, into a check before publication.

    The function receives part of a committed batch: consecutive records of one shard, with the
    columns of the output. It returns None or True if they pass, a text with the reason if they
    fail, or a boolean array with False for each record that fails. It must have no side effects,
    because a batch can be checked again.

    A predicate has Iceberg's filter syntax. A record passes if the predicate is true, not null.

    Args:
        name: the name of the check, also in Dagster; by default, the name of the function.
        sql: the predicate, instead of a function.
        on_failure: the handling of a batch that fails: `hold` it and the later batches of its
            shard, send the failed records to `quarantine`, or `warn` and publish it.
        quarantined_max: the most records of one batch that go to quarantine; with more, the batch
            is held.

    Examples:
        >>> @publication_check(on_failure="quarantine")
        ... def amounts(records):
        ...     return pc.greater_equal(records["amount"], 0)
        >>> users = publication_check(name="users", sql="user is not null")
        >>> settings = TableSettings(publication_checks=[amounts, users])
        >>> [check.name for check in settings.publication_checks]
        ['amounts', 'users']
    """

    def check(function: CheckFunction | None) -> PublicationCheck:
        return PublicationCheck(
            name, sql, function, on_failure=on_failure, quarantined_max=quarantined_max
        )

    return check if function is None and not sql else check(function)


def declared_check(value: Any, info: ValidationInfo) -> Any:
    """Return a check from a function, or from the name of one in YAML; pydantic checks the rest."""
    if isinstance(value, str):
        value = _function(value, info)
    if callable(value) and not isinstance(value, PublicationCheck):
        return PublicationCheck(function=value)
    return value
