"""`leasehold replay` and `compact`, which rewrite committed output while consumption continues."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.assets.errors import RewriteRefused
from dagster_leasehold.orchestration.commands import options
from dagster_leasehold.orchestration.commands.target import NamedGroup, Target
from dagster_leasehold.orchestration.presentation import show_json, show_table
from dagster_leasehold.orchestration.progress_display import progress
from dagster_leasehold.orchestration.supervision.interrupts import handled_by

if TYPE_CHECKING:
    from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId

TARGET_MIB = 128


def replay(
    choice: NamedGroup,
    shards: options.Shards = None,
    *,
    start: options.Start = None,
    end: options.End = None,
    replaces: options.Replaces = None,
) -> None:
    """Rebuild committed output with the current transform, while consumption continues.

    The new output of a shard appears in one step. Batches whose records the source has removed keep
    their output.
    """
    from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan

    span = ReplaySpan.parse(start, end)
    target, declared = choice.declared()
    replay_shards(
        target,
        declared,
        shards,
        span,
        title=f"Replay of {declared.key}",
        replaces=replaces,
        as_json=choice.as_json,
    )


def replay_shards(
    target: Target,
    stream: ShardStream,
    named_shards: list[str] | None,
    span: ReplaySpan,
    *,
    title: str,
    replaces: str | None,
    as_json: bool,
) -> None:
    """Replay a span of the given shards, or of all, and print the result."""
    from dagster_leasehold.assets.rewriting.replay import replay_on_spark
    from dagster_leasehold.orchestration.resources import spark_of

    shards, run = _selection(target, stream.key, named_shards), _new_run_id("replay")
    with progress("replaying", "batches") as show, _releasing_claims():
        reports = replay_on_spark(
            stream,
            target.store,
            shards,
            span,
            spark=spark_of(target.settings),
            output_root=target.own_output(stream.key),
            run=run,
            ended=lambda former: former == replaces,
            progress=show,
        )
    results = [reports[shard] for shard in shards]
    if as_json:
        show_json({"group": str(stream.key), "run": run, "shards": results})
    else:
        show_table(
            title,
            "shard, >batches, >records, >written, >quarantined, >kept, >kept until, >unpublished, "
            ">expired until",
            # The columns are the fields of a report, except the last one, its error.
            (astuple(report)[:-1] for report in results if not report.error),
        )
    _raise_failures([(report.shard, report.error) for report in results if report.error])


def compact(
    choice: NamedGroup,
    shards: options.Shards = None,
    *,
    target_mib: Annotated[
        int, typer.Option("--target-mib", min=1, help="Size of a merged file, in MiB.")
    ] = TARGET_MIB,
    replaces: options.Replaces = None,
) -> None:
    """Merge small files of committed output into larger ones, in the table's sort order, if any.

    Readers and consumption continue. `leasehold vacuum` removes the small files.
    """
    from dagster_leasehold.assets.rewriting.compaction import Compactor

    target, key = choice.opened()
    selection, run = _selection(target, key, shards), _new_run_id("compact")
    compactor = Compactor(
        store=target.store,
        key=key,
        output_root=target.own_output(key),
        run=run,
        target_bytes=target_mib * 1024 * 1024,
        sort_order=target.declared(choice.stream).iceberg.sort_order,
        ended=lambda former: former == replaces,
    )
    with progress("compacting", "batches") as show, _releasing_claims():
        results = list(compactor.compact(selection, show).values())
    if choice.as_json:
        show_json({"group": str(key), "run": run, "shards": results})
    else:
        show_table(
            f"Compaction of {key}",
            "shard, >batches merged, >files before, >after, >bytes merged, >into",
            (astuple(report)[:-1] for report in results),
        )
    _raise_failures([(report.shard, report.error) for report in results if report.error])


def _selection(target: Target, key: GroupKey, named_shards: list[str] | None) -> list[ShardId]:
    return [lease.shard for lease in target.leases(key, [*dict.fromkeys(named_shards or ())])]


def _new_run_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def _releasing_claims() -> AbstractContextManager[None]:
    """Handle SIGTERM like Ctrl-C within the block, so that claims are released."""
    return handled_by(signal.default_int_handler, signal.SIGTERM)


def _raise_failures(failures: Sequence[tuple[str, str]]) -> None:
    if not failures:
        return
    shard, error = failures[0]
    if len(failures) > 1:
        raise RewriteRefused(
            f"{len(failures)} shards keep their old output. Shard {shard}, for example: {error}"
        )
    raise RewriteRefused(f"Shard {shard} keeps its old output: {error}")
