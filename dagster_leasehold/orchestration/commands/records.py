"""`leasehold load` and `cat`: append records to a local log, and print committed records."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.commands import options
from dagster_leasehold.orchestration.commands.target import DeploymentChoice, Target
from dagster_leasehold.orchestration.presentation import is_text, plain, plain_key, show_result
from dagster_leasehold.orchestration.progress_display import progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from dagster_leasehold.assets.output.table.reading import TablePlan

SHARDS_DEFAULT = 8


def cat(
    stream: options.AnyStream = None,
    shard: options.AnyShard = None,
    *,
    parquet: Annotated[
        Path | None,
        typer.Option("--parquet", metavar="FILE", help="Write one new Parquet file instead."),
    ] = None,
    route: Annotated[
        str, typer.Option("--route", metavar="NAME", help="Print only records of this route.")
    ] = "",
    group: options.GroupName = None,
    module: options.Module = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait",
            help="Publish or wait for committed records that are not in the table yet.",
        ),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines (the default).")
    ] = False,
    home: options.Home = None,
) -> None:
    """Print committed records as JSON lines, in order per shard.

    Committed records that are not in the table yet are published first. With `--parquet` and
    `--json`, prints a summary.
    """
    from dagster_leasehold.assets.output.committed_output import CommittedOutput
    from dagster_leasehold.assets.output.expired_output import expired_output, where_output_begins

    target = Target.at(home, module)
    key = target.group(stream, group).key
    shard_id = target.named_shard(key, shard)
    shards = None if shard_id is None else [shard_id]
    if parquet is not None:
        _check_can_create(parquet)
    output = CommittedOutput(
        target.store,
        key,
        target.output(key),
        target.declared(key.stream).iceberg,
        target.settings.catalog_settings,
    )
    plan = output.plan(shards=shards, route=route, wait=wait)
    if parquet is None:
        for batch in plan.batches():
            sys.stdout.writelines(json_lines(batch))
        # Read last, since records that expired during the command can be missing above.
        expired = expired_output(target.store, key, shards)
    else:
        records = _write_parquet(plan, parquet)
        expired = expired_output(target.store, key, shards)
        show_result(
            {"group": str(key), "file": parquet, "records": records, "expired": expired},
            f"Wrote {records:,} committed records of {key} to {parquet}.",
            as_json=as_json,
        )
    for line in where_output_begins(key, expired):
        typer.echo(line, err=True)


def _check_can_create(file: Path) -> None:
    if file.exists():
        raise InvalidSetting(f"The file {file} already exists: give a new file with --parquet.")
    if not file.parent.is_dir():
        raise InvalidSetting(
            f"The folder {file.parent} does not exist: create it, or give another file with "
            "--parquet."
        )


def _write_parquet(plan: TablePlan, file: Path) -> int:
    from dagster_leasehold.assets.output.committed_output import write_parquet

    total = sum(planned.records for planned in plan.files)
    with progress(f"writing {file.name}", "records", total) as show:
        return write_parquet(plan, file, show)


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """Yield each record of a batch as a line of JSON, with a transform's columns last."""
    kinds = batch.schema.types
    for row in batch.to_pylist():
        values = map(_with_maps, row.values(), kinds)
        record = json_record(dict(zip(row, values, strict=True)))
        yield json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def json_record(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a record to JSON types; bytes other than UTF-8 become base64 in `<column>_base64`."""
    return {
        f"{name}_base64" if isinstance(value, bytes) and not is_text(value) else name: plain(value)
        for name, value in row.items()
    }


def _with_maps(value: Any, kind: Any) -> Any:
    """Convert the maps in an Arrow value to dictionaries with texts as keys."""
    import pyarrow as pa

    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        keys = [plain_key(_with_maps(key, kind.key_type)) for key, _ in value]
        return dict(zip(keys, (_with_maps(item, kind.item_type) for _, item in value), strict=True))
    if pa.types.is_struct(kind):
        return {field.name: _with_maps(value[field.name], field.type) for field in kind}
    return [_with_maps(item, kind.value_type) for item in value]


def load(
    stream: options.Stream,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Files; each line is a record.")
    ],
    *,
    shards: Annotated[
        int, typer.Option("--shards", min=1, max=4096, help="Number of shards, if the log is new.")
    ] = SHARDS_DEFAULT,
    choice: DeploymentChoice,
) -> None:
    """Append the lines of files to a stream's local log; create the log if it is missing."""
    from dagster_leasehold.shard_sources.local_log import LocalLog
    from dagster_leasehold.shard_sources.local_log.lines import check_readable

    target = choice.target
    declared = target.declared(stream)
    check_readable(files)
    target.make_home()
    log = LocalLog.create(target.local_log(declared.name).root, shards, exist_ok=True)
    with progress(f"loading into {declared.name}", "records") as show:
        appended = log.append_lines(*files, progress=show)
    records = sum(int(part.end) - int(part.begin) for part in appended.values())
    show_result(
        {"stream": declared.name, "records": records, "appended": appended},
        f"Loaded {records:,} records into {len(appended)} shards of stream {declared.name}.",
        as_json=choice.as_json,
    )
