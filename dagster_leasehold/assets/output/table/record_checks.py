"""Runs publication checks on the files of one committed batch, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.output.attempts import (
    ATTEMPTS_FOLDER,
    attempt_name,
    file_name,
    reading,
)
from dagster_leasehold.assets.output.output_file import OutputFile
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.publication_check import PublicationCheck
from dagster_leasehold.assets.routes import route_of
from dagster_leasehold.lease_store.errors import LeaseholdError, one_line, plain_reason, shown
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchRewrite, DataFile

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPT = "publication-check"
"""The prefix of the names of attempts with records that passed a check."""
_REASON_MAX = 300


class CheckUnusable(LeaseholdError):
    """A check raised, or returned something other than a result."""


@dataclass
class CheckResult:
    """The result of one check for one batch.

    Attributes:
        failed: the number of records that failed.
        records: the number of records of the batch.
        complaint: the reason that the check gave first, or its rule.
        unusable: True if the check raised.
    """

    check: PublicationCheck
    failed: int = 0
    records: int = 0
    complaint: str = ""
    unusable: bool = False

    @property
    def holds(self) -> bool:
        """True if the batch is held."""
        kind, many = self.check.on_failure, self.failed > self.check.quarantined_max
        if self.unusable:
            return kind != "warn"
        return bool(self.failed) and (kind == "hold" or (kind == "quarantine" and many))

    @property
    def text(self) -> str:
        """The reason, with the number of records."""
        count = f"{self.failed:,} of {self.records:,} records fail: "
        return f"{'' if self.unusable else count}{self.complaint}"[:_REASON_MAX]


def check_batch(
    folder: OutputPlace,
    batch: Batch,
    checks: Sequence[PublicationCheck],
    names: Mapping[str, str] = MappingProxyType({}),
) -> list[CheckResult]:
    """Return the result of each check for a batch.

    `names` has the current name of each earlier name of the table's columns.

    Raises:
        LogCorrupt: a file is missing or damaged.
    """
    results = [CheckResult(check) for check in checks]
    for file in batch.files:
        if file.quarantine:
            continue
        for rows in _row_groups(folder / file.path, batch, names):
            for result in results:
                _add(result, rows)
    return results


def _add(result: CheckResult, rows: pa.Table) -> None:
    result.records += rows.num_rows
    if result.unusable:
        return
    try:
        passed, complaint = evaluated(result.check, rows)
    except CheckUnusable as error:
        result.unusable, result.complaint = True, str(error)
        return
    failed = rows.num_rows - int(passed.true_count)
    if failed:
        result.failed += failed
        result.complaint = result.complaint or complaint


def evaluated(check: PublicationCheck, rows: pa.Table) -> tuple[pa.BooleanArray, str]:
    """Return a mask of the records that pass a check, and the reason for the others.

    Raises:
        CheckUnusable: the check raised, or returned something else.
    """
    import pyarrow as pa

    try:
        outcome = _predicate(check.sql, rows) if check.sql else check(rows)
    except Exception as error:
        cause = one_line(plain_reason(str(error)) or type(error).__name__)
        raise CheckUnusable(f"the check raised {type(error).__name__}: {cause}") from error
    if outcome is None or isinstance(outcome, bool | str):
        passed = outcome is None or outcome is True
        every = pa.array([passed] * rows.num_rows, pa.bool_())
        return every, outcome if isinstance(outcome, str) and outcome else check.rule
    mask: Any = outcome
    if isinstance(outcome, pa.ChunkedArray):
        mask = pa.concat_arrays(mask.chunks) if mask.chunks else pa.array([], mask.type)
    if not isinstance(mask, pa.BooleanArray) or len(mask) != rows.num_rows:
        raise CheckUnusable(
            f"the check returned {type(outcome).__name__}: return None, a reason, or one boolean "
            "for each record"
        )
    return mask.fill_null(False), check.rule


def _predicate(sql: str, rows: pa.Table) -> object:
    import pyarrow.dataset as ds

    expression = _expression(sql, rows.schema)
    return ds.dataset(rows).to_table(columns={"passed": expression})["passed"]


@lru_cache(maxsize=64)
def _expression(sql: str, schema: pa.Schema) -> Any:
    from pyiceberg.expressions.parser import parse
    from pyiceberg.expressions.visitors import bind
    from pyiceberg.io.pyarrow import expression_to_pyarrow
    from pyparsing import ParseException

    from dagster_leasehold.assets.output.table.columns import columns_of
    from dagster_leasehold.assets.output.table.schemas import evolved

    try:
        parsed = parse(sql)
    except ParseException as error:
        raise ValueError(f"the predicate is not valid at {shown(sql[error.loc :])}") from None
    fields = evolved(None, columns_of(schema), 0)
    return expression_to_pyarrow(bind(fields, parsed, case_sensitive=True), fields)


def _row_groups(path: OutputPlace, batch: Batch, names: Mapping[str, str]) -> Iterator[pa.Table]:
    with reading(path, batch.batch_id), path.parquet() as file:
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number)
            yield rows.rename_columns([names.get(name, name) for name in rows.schema.names])


@dataclass
class QuarantiningRewrite:
    """Writes a batch's records that pass some checks, and the others to quarantine."""

    folder: OutputPlace
    batch: Batch
    checks: Sequence[PublicationCheck]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    _quarantine: OutputFile | None = None
    _written: list[OutputFile] = field(default_factory=list[OutputFile])

    def write(self) -> BatchRewrite:
        """Return the rewrite of the batch; its files are durable."""
        attempt = f"{ATTEMPTS_FOLDER}/{attempt_name(ATTEMPT)}"
        at = self.folder / attempt
        at.make_folder()
        try:
            files = self._files(attempt)
        except BaseException:
            for file in self._written:
                file.abandon()
            at.remove_folder()
            raise
        for file in self._written:
            file.sync()
        at.sync_folder()
        batch = self.batch
        before = {file.path for file in batch.files}
        new = [file for file in files if file.quarantine and file.path not in before]
        number = sum(file.records for file in new)
        statistics = replace(
            batch.statistics,
            written=batch.statistics.written - number,
            quarantined=batch.statistics.quarantined + number,
        )
        return BatchRewrite(batch.sequence, batch.generation, files, statistics, batch.attempt)

    def _files(self, attempt: str) -> tuple[DataFile, ...]:
        files: list[DataFile] = []
        for part, file in enumerate(self.batch.files, 1):
            if file.quarantine:
                files.append(file)
                continue
            own: OutputFile | None = None
            for rows in _row_groups(self.folder / file.path, self.batch, self.names):
                good = self._divided(rows, attempt)
                if good.num_rows == 0:
                    continue
                if own is None:
                    name = self._name(part=part, route=route_of(file.path))
                    place = self.folder / attempt / name
                    own = OutputFile(
                        self.batch.shard,
                        place,
                        good.schema,
                        quarantine=False,
                        partition=file.partition,
                    )
                    self._written.append(own)
                for each in good.to_batches():
                    own.add(each)
            if own is not None:
                files.append(own.finish().data_file(attempt))
        if self._quarantine is not None:
            files.append(self._quarantine.finish().data_file(attempt))
        return tuple(files)

    def _divided(self, rows: pa.Table, attempt: str) -> pa.Table:
        """Return the rows that pass all checks; the others go to quarantine."""
        import pyarrow.compute

        pc: Any = pyarrow.compute
        for check in self.checks:
            passed, reason = evaluated(check, rows)
            if passed.true_count == rows.num_rows:
                continue
            failed = quarantine_rows(rows.filter(pc.invert(passed)), f"{check.name}: {reason}")
            if self._quarantine is None:
                place = self.folder / attempt / self._name(quarantine=True)
                self._quarantine = OutputFile(
                    self.batch.shard, place, failed.schema, quarantine=True
                )
                self._written.append(self._quarantine)
            for each in failed.to_batches():
                self._quarantine.add(each)
            rows = rows.filter(passed)
        return rows

    def _name(self, *, quarantine: bool = False, part: int = 0, route: str = "") -> str:
        shard, numbers = self.batch.shard, range(self.batch.sequence, self.batch.last + 1)
        return file_name(shard, numbers, "checked", quarantine=quarantine, part=part, route=route)


def quarantine_rows(rows: pa.Table, error: str) -> pa.Table:
    """Return rows of output as rows of quarantine.

    Columns that the output lacks are null. If it lacks the value as bytes, the value is the whole
    row as JSON.
    """
    import json

    import pyarrow as pa

    from dagster_leasehold.shard_sources.source import record_schema

    columns: dict[str, Any] = {}
    for field_ in record_schema():
        if field_.name not in ("shard_id", "cursor", "event_time", "key", "value"):
            continue
        at = rows.schema.get_field_index(field_.name)
        fits = at >= 0 and rows.schema.field(at).type.equals(field_.type)
        columns[field_.name] = rows.column(at) if fits else pa.nulls(rows.num_rows, field_.type)
        if field_.name == "value" and not fits:
            texts = [json.dumps(row, default=str).encode() for row in rows.to_pylist()]
            columns["value"] = pa.array(texts, field_.type)
        if field_.name == "cursor" and not fits:
            columns["cursor"] = pa.array([""] * rows.num_rows, field_.type)
    columns["error"] = pa.array([error] * rows.num_rows, pa.string())
    return pa.table(columns)
