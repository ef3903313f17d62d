"""The demo's home: made, marked as the demo's own, and started over only where it is marked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from dagster_leasehold.assets.spark.spark_settings import CONNECT, SparkSettings
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.project_module import SETTINGS_FILE
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.stream_settings import StreamSettings
from dagster_leasehold.orchestration.supervision.leftovers import LOCK_FILE

MARK_FILE = "demo.json"
NODES = ("node-a", "node-b")
STREAM = "demo"
GROUP = "default"
BATCH_RECORDS_MAX = 5_000
"""Small, so that a demo shows many batches."""
COMMIT_INTERVAL_S = 0.0
IDLE_LIMIT_S = 1.0
"""Short, so that a demo shows runs from their beginning to their end, and has an end itself."""


def demo_settings(home: Path, spark: SparkSettings) -> Settings:
    """Return the settings of a demo: two nodes, one deployment, one stream, SQLite in the home."""
    stream = StreamSettings(
        name=STREAM,
        group=GROUP,
        batch_records_max=BATCH_RECORDS_MAX,
        commit_interval_s=COMMIT_INTERVAL_S,
        idle_limit_s=IDLE_LIMIT_S,
    )
    return Settings(home=home.absolute(), nodes=NODES, spark=spark, streams=(stream,))


def begin_home(settings: Settings) -> None:
    """Empty the home but for our mark and our settings.

    Raises:
        InvalidSetting: the home holds something that no demo made.
    """
    home = settings.home
    # What is neither marked by us nor empty is somebody's data.
    if not (home / MARK_FILE).exists():
        others = sorted(entry.name for entry in home.iterdir() if entry.name != LOCK_FILE)
        if others:
            raise InvalidSetting(
                f"The folder {home} holds {others[0]!r}, and no demo made it: name an empty or new "
                "folder with --home."
            )
    for entry in home.iterdir():
        if entry.name in (LOCK_FILE, MARK_FILE):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (home / MARK_FILE).write_text(json.dumps({"made_by": "leasehold demo"}) + "\n")
    (home / SETTINGS_FILE).write_text(settings_text(settings))


def settings_text(settings: Settings) -> str:
    """Return `leasehold.toml` of the home: later commands find the same nodes and streams in it."""
    stream = settings.streams[0]
    spark = settings.spark.model_dump(mode="json", exclude_defaults=True)
    # A JSON string or list of strings is a TOML one too.
    return (
        "# Written by `leasehold demo`.\n"
        f"nodes = {json.dumps(settings.nodes)}\n"
        f"spark = {_inline(spark) if spark else json.dumps(CONNECT)}\n\n"
        "[[streams]]\n"
        f"name = {json.dumps(stream.name)}\n"
        f"group = {json.dumps(stream.group)}\n"
        f"batch_records_max = {stream.batch_records_max}\n"
        f"commit_interval_s = {stream.commit_interval_s}\n"
        f"idle_limit_s = {stream.idle_limit_s}\n"
    )


def _inline(table: Mapping[str, object]) -> str:
    """Return a table as TOML writes it in one line."""
    entries = (
        f"{json.dumps(key)} = {_inline(value) if isinstance(value, Mapping) else json.dumps(value)}"
        for key, value in table.items()
    )
    return f"{{ {', '.join(entries)} }}"
