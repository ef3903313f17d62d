"""`leasehold doctor`: checks a deployment from this host, and prints a line per finding."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store.errors import StoreError, counted, listed
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration import presentation
from dagster_leasehold.orchestration.commands.dagster_check import dagster
from dagster_leasehold.orchestration.commands.findings import Check, Finding, Health, findings_of
from dagster_leasehold.orchestration.commands.spark_check import spark_runtime
from dagster_leasehold.orchestration.commands.target import DeploymentChoice, Target
from dagster_leasehold.orchestration.supervision import preflight

if TYPE_CHECKING:
    from dagster_leasehold.assets.places.place import OutputPlace

CLOCK_APART_S = 5.0
ENTRIES_READ = 1_000
SHARDS_CHECKED = 1
OF_THE_STORE = ("clock", "catalog", "nodes")
"""The checks that use the lease store; opening an SQLite store would upgrade its schema."""


def doctor(
    choice: DeploymentChoice,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Also start a Spark session and check one of its workers."),
    ] = False,
) -> None:
    """Check a deployment from this host: database, output, Spark, sources, Dagster and nodes.

    Writes a small file to the output, and removes it. Exits with 1 if a check failed.
    """
    findings = check_all(choice.target, started=spark)
    failed = any(each.health is Health.FAILED for each in findings)
    if choice.as_json:
        presentation.show_json({"healthy": not failed, "findings": findings})
    else:
        show_findings(findings)
    if failed:
        raise typer.Exit(1)


def check_all(target: Target, *, started: bool = False) -> list[Finding]:
    """Return the findings of all checks; with `started`, they include a Spark session."""
    environment = dict(os.environ)
    findings = findings_of("database", lambda: database(target))
    usable = any(each.part == "schema" and each.health is Health.OK for each in findings)
    checks: dict[str, Check] = {
        "clock": lambda: clocks(target, utc_now),
        "output": lambda: output(target),
        "catalog": lambda: catalog(target),
        "spark": lambda: spark_runtime(target, started=started),
        "source": lambda: sources(target),
        "dagster": lambda: dagster(target, time.time, environment, with_nodes=usable),
        "nodes": lambda: nodes(target),
    }
    for part, check in checks.items():
        assigned = part == "output" and target.settings.catalog_settings.assigns
        possible = usable or not (assigned or part in OF_THE_STORE)
        findings += findings_of(part, check) if possible else [skipped_check(part)]
    return findings


def show_findings(findings: Sequence[Finding]) -> None:
    """Print a line for each finding."""
    for each in findings:
        presentation.say(f"{each.health:<8} {each.part}: {each.text}")


def skipped_check(part: str) -> Finding:
    """Return the finding of a check that was skipped because it could upgrade the store."""
    text = "not checked: fix the lease store first, see above."
    return Finding(part, Health.WARNING, text)


def database(target: Target) -> Iterator[Finding]:
    """Yield findings on the session, schema and privileges in the lease store's database."""
    from dagster_leasehold.lease_store.database_report import database_report

    target.store.close()
    report = database_report(target.settings.store_url)
    text = report.server
    if (session := report.session) is not None:
        unverified = "" if session.verified else ", server not verified"
        tls = f"TLS with {session.cipher}{unverified}" if session.cipher else "no TLS"
        text += (
            f", {session.isolation}, innodb_lock_wait_timeout {session.lock_wait_s} s, "
            f"wait_timeout {session.idle_s} s, {tls}"
        )
    yield Finding("database", Health.OK, f"{text}.")
    try:
        report.schema.check("this deployment")
    except StoreError as error:
        yield Finding("schema", Health.FAILED, str(error))
        return
    yield Finding("schema", Health.OK, f"revision {report.schema.revision}.")
    if report.refused:
        text = f"the account lacks these privileges: {listed(report.refused)}. Grant them."
        yield Finding("privileges", Health.FAILED, text)
    elif report.refused is not None:
        text = "the account can read and write all tables, and delete old history."
        yield Finding("privileges", Health.OK, text)


def clocks(target: Target, now: Callable[[], datetime]) -> Iterator[Finding]:
    """Yield the difference of the clocks, and the largest backward step in the journal."""
    from dagster_leasehold.lease_store.database_report import database_report

    difference_s = abs((database_report(target.settings.store_url).now - now()).total_seconds())
    back_s = 0.0
    for group in target.store.groups():
        entries = target.store.journal(group.key, limit=ENTRIES_READ, newest=True)
        times = [entry.at for entry in sorted(entries, key=lambda entry: entry.sequence)]
        for before, after in pairwise(times):
            back_s = max(back_s, (before - after).total_seconds())
    if difference_s > CLOCK_APART_S or back_s > CLOCK_APART_S:
        text = (
            f"the clocks of this host and the database differ by {difference_s:.0f} s, and times "
            f"in the journal step back by up to {back_s:.0f} s. No decision depends on clocks, but "
            "displayed times are wrong: check NTP on the hosts."
        )
        yield Finding("clock", Health.WARNING, text)
        return
    yield Finding("clock", Health.OK, f"differs from the database's by {difference_s:.1f} s.")


def output(target: Target) -> Iterator[Finding]:
    """Yield whether each output location can write, sync, read and remove a small file."""
    settings = target.settings
    if not settings.catalog_settings.assigns:
        yield _stored_file(settings.output_root, settings.home)
        return
    for group in target.store.groups():
        if _has_table(target, group.key):
            yield _stored_file(target.output(group.key), settings.home)


def _has_table(target: Target, key: GroupKey) -> bool:
    publication = target.store.publication(key)
    return publication is not None and publication.table is not None


def _stored_file(place: OutputPlace, home: Path) -> Finding:
    if place.is_local:
        preflight.require_room(home)
    began_s = time.monotonic()
    try:
        same = _stores_file(place, uuid.uuid4().bytes)
    except OSError as error:
        text = (
            f"{place} cannot store, return and delete a file ({sentence_of(error)}): fix it, or "
            "use another location."
        )
        return Finding("output", Health.FAILED, text)
    took_ms = (time.monotonic() - began_s) * 1000
    if not same:
        text = f"{place} returns other bytes than were written: use another location."
        return Finding("output", Health.FAILED, text)
    return Finding("output", Health.OK, f"{place} stores and returns a file in {took_ms:.0f} ms.")


def _stores_file(root: OutputPlace, content: bytes) -> bool:
    """Write, read and remove a file; return True if the content was the same."""
    folder = Path(str(root))
    missing = [each for each in (folder, *folder.parents) if root.is_local and not each.exists()]
    file = root / f"doctor-{content.hex()}"
    try:
        root.make_folder(exist_ok=True)
        file.put(content)
        root.sync_folder()
        return file.content() == content
    finally:
        file.remove(missing_ok=True)
        with suppress(OSError):  # A run can have written to the folder in the meantime.
            for each in missing:
                each.rmdir()


def catalog(target: Target) -> Iterator[Finding]:
    """Yield the number of published tables, and the groups without one."""
    from dagster_leasehold.assets.output.table.group_table import find_table

    settings, tables, unpublished = target.settings, list[str](), list[str]()
    for group in target.store.groups():
        if settings.catalog_settings.assigns and not _has_table(target, group.key):
            unpublished.append(str(group.key))
            continue
        place = target.output(group.key)
        table = find_table(target.store, group.key, settings.catalog_settings, place)
        (tables if table else unpublished).append(str(group.key))
    text = f"{counted(len(tables), 'table')} in the catalog {settings.catalog}"
    text += f"; not published yet: {listed(unpublished)}." if unpublished else "."
    yield Finding("catalog", Health.OK, text)


def sources(target: Target) -> Iterator[Finding]:
    """Yield for each declared stream whether its shards can be listed, and one of them read."""
    from dagster_leasehold.shard_sources.source import Limits

    def findings(name: str) -> Iterator[Finding]:
        source = target.streams.usable(name).source
        shards = [listing.shard for listing in source.list_shards()]
        for shard, bounds in source.bounds(shards[:SHARDS_CHECKED]).items():
            source.plan(shard, bounds.begin, Limits(records_max=1))
        yield Finding(
            f"source of {name}",
            Health.OK if shards else Health.WARNING,
            f"{counted(len(shards), 'shard')}, readable.",
        )

    for name in target.streams.names:
        yield from findings_of(f"source of {name}", lambda name=name: findings(name))


def nodes(target: Target) -> Iterator[Finding]:
    """Yield for each group the number of members, and the members that accept no runs."""
    for group in target.store.groups():
        members = [node for node in target.store.pulse(group.key).nodes if node.member]
        idle_nodes = [str(node.name) for node in members if not node.accepts_runs]
        part = f"nodes of {group.key}"
        if not members:
            text = "no node is a member: start `leasehold dev`, or an agent with `leasehold node`."
            yield Finding(part, Health.FAILED, text)
        elif idle_nodes:
            names = listed(idle_nodes)
            text = f"these nodes take no runs: {names}. Check their code servers and the daemon."
            yield Finding(part, Health.WARNING, text)
        else:
            yield Finding(part, Health.OK, f"{counted(len(members), 'member')}.")
