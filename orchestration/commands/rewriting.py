"""`leasehold replay` and `compact`: rebuild committed output while consumption continues."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dagster_leasehold.assets.errors import RewriteRefused
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.orchestration.commands.options import (
    End,
    GroupName,
    Home,
    Json,
    Replaces,
    Shards,
    Start,
    StreamArgument,
    StreamModule,
)
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.presentation import progress, show_json, show_table

if TYPE_CHECKING:
    from dagster_leasehold.assets.rewriting.replay import ReplayReport
    from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId

TARGET_MIB = 128
Result = TypeVar("Result")


def replay(
    stream: StreamArgument = None,
    *,
    shard: Shards = None,
    start: Start = None,
    end: End = None,
    module: StreamModule = None,
    replaces: Replaces = None,
    group: GroupName = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Rebuild committed output with today's transform, while consumption continues.

    Checkpoints stay, and batches keep their ranges. The new output of a shard appears as a whole or
    not at all. Records that retention has removed from the log keep their old output.
    """
    from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan

    span = ReplaySpan.parse(start, end)
    target = Target.at(home)
    declared, key = target.chosen(stream, group, module)
    shards = chosen_shards(target, key, shard)
    run, done = replay_shards(
        target, declared, key, shards, span, replaces=replaces, of_settings=module is None
    )
    if as_json:
        show_json({"group": str(key), "run": run, "shards": done})
    else:
        show_replay(f"Replay of {key}", done)
    refuse_failed((report.shard, report.error) for report in done)


def replay_shards(
    target: Target,
    stream: ShardStream,
    key: GroupKey,
    shards: Sequence[ShardId],
    span: ReplaySpan,
    *,
    replaces: str | None,
    of_settings: bool,
) -> tuple[str, list[ReplayReport]]:
    """Replay a span of some shards; return the run's id, and a report for each shard.

    `of_settings` is True if the stream's declaration is the one of the settings.
    """
    from dagster_leasehold.assets.rewriting.replay import replay_on_spark
    from dagster_leasehold.orchestration.resources import spark_of

    run = new_run("replay")
    resource = spark_of(target.settings)
    with progress("replaying", "batches") as show:
        reports = interruptible(
            lambda: replay_on_spark(
                stream,
                target.store,
                shards,
                span,
                session=lambda: resource.spark_session,
                output_root=target.settings.output_folder(key.stream, key.group),
                run=run,
                ended=named(replaces),
                of_settings=of_settings,
                progress=show,
            )
        )
    return run, [reports[shard] for shard in shards]


def show_replay(title: str, done: Sequence[ReplayReport]) -> None:
    """Show the shards that were replayed as a table."""
    show_table(
        title,
        (
            "shard",
            "batches",
            "records",
            "written",
            "quarantined",
            "kept",
            "kept until",
            "expired until",
        ),
        (
            (
                report.shard,
                report.batches,
                report.records,
                report.written,
                report.quarantined,
                report.kept,
                report.kept_until,
                report.expired_until,
            )
            for report in done
            if not report.error
        ),
        numeric=(
            "batches",
            "records",
            "written",
            "quarantined",
            "kept",
            "kept until",
            "expired until",
        ),
    )


def compact(
    stream: StreamArgument = None,
    *,
    shard: Shards = None,
    target_mib: Annotated[
        int, typer.Option("--target-mib", min=1, help="Size of a merged file, in MiB.")
    ] = TARGET_MIB,
    replaces: Replaces = None,
    group: GroupName = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Merge small files of committed output into larger ones, in the same order.

    Each swap is one transaction; readers and consumption continue. The small files stay on the disk
    until `leasehold vacuum` removes them.
    """
    from dagster_leasehold.assets.rewriting.compaction import Compactor

    target = Target.at(home)
    key = target.group(stream, group).key
    shards = chosen_shards(target, key, shard)
    run = new_run("compact")
    compactor = Compactor(
        store=target.store,
        key=key,
        output_root=target.settings.output_folder(key.stream, key.group),
        run=run,
        target_bytes=target_mib * 1024 * 1024,
        ended=named(replaces),
    )
    with progress("compacting", "shards", len(shards)) as show:
        done = list(interruptible(lambda: compactor.compact(shards, show)).values())
    if as_json:
        show_json({"group": str(key), "run": run, "shards": done})
    else:
        show_table(
            f"Compaction of {key}",
            ("shard", "batches merged", "files before", "after", "bytes merged", "into"),
            (
                (
                    report.shard,
                    report.batches,
                    report.files_before,
                    report.files_after,
                    report.bytes_before,
                    report.bytes_after,
                )
                for report in done
            ),
            numeric=("batches merged", "files before", "after", "bytes merged", "into"),
        )
    refuse_failed((report.shard, report.error) for report in done)


def chosen_shards(target: Target, key: GroupKey, named_shards: list[str] | None) -> list[ShardId]:
    """Return the shards that were named, or all of the group, by rank.

    Raises:
        UnknownShard: the group has no such shard.
    """
    if named_shards:
        return [target.shard(key, shard).shard for shard in dict.fromkeys(named_shards)]
    return sorted((lease.shard for lease in target.store.snapshot(key).shards), key=rank_key)


def new_run(kind: str) -> str:
    """Return an id for a rewriting run of the command line, never used before."""
    return f"{kind}-{uuid.uuid4().hex}"


def named(replaces: str | None) -> Callable[[str], bool]:
    """Return a rule by which the run that the user named has ended, and no other."""
    return lambda run: run == replaces


def interruptible(work: Callable[[], Result]) -> Result:
    """Run `work` so that a request to terminate lets it give its claims back, like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return work()
    finally:
        signal.signal(signal.SIGTERM, before)


def refuse_failed(errors: Iterable[tuple[str, str]]) -> None:
    """End with a sentence about the shards that keep their old output.

    Raises:
        RewriteRefused: there are such shards.
    """
    failed: Sequence[tuple[str, str]] = [(shard, error) for shard, error in errors if error]
    if failed:
        shard, error = failed[0]
        if len(failed) > 1:
            raise RewriteRefused(
                f"{len(failed)} shards keep their old output. Shard {shard}, for example: {error}"
            )
        raise RewriteRefused(f"Shard {shard} keeps its old output: {error}")
