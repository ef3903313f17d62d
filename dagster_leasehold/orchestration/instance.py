"""The Dagster instance of a deployment: its `dagster.yaml`, and the creation of its home."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.orchestration.project_module import DEFINITIONS_MODULE
from dagster_leasehold.orchestration.settings import LOCATION, Settings

OWNED_MARK = "# Written by leasehold at every start; remove this line to keep your own changes."
INSTANCE_FILE = "dagster.yaml"
BACKFILL_RUNS_MAX = 16
"""The most active runs of backfills, on all hosts."""

_WORKSPACE = f"""\
{OWNED_MARK}
load_from:
  - python_module:
      module_name: {DEFINITIONS_MODULE}
      location_name: {LOCATION}
"""

RUNS_PER_NODE_MAX = 8
"""The most active runs of a node, for all streams. A stream has at most two, and usually one."""

_COMMON = """\
# A run that a sensor requests for a node starts at once if no run is queued and no limit is near.
# Dagster's queue takes all other runs. The daemon checks it every second.
run_coordinator:
  module: dagster_leasehold.orchestration.supervision.run_queue
  class: PromptRunCoordinator
  config:
    dequeue_interval_seconds: 1
    # With threads, a node that answers late does not delay the runs of other nodes.
    dequeue_use_threads: true
    dequeue_num_workers: 4

concurrency:
  runs:
    # The most active runs of all nodes. Further runs are queued, so raise it with the nodes.
    max_concurrent_runs: {runs_max}
    # These limits save work; shards are safe without them, by their leases. Assets with the same
    # shard ids share the first limit.
    tag_concurrency_limits:
      - key: dagster/partition
        value:
          applyLimitPerUniqueValue: true
        limit: 1
      # Each run is a process with about half a gibibyte of memory.
      - key: leasehold/node
        value:
          applyLimitPerUniqueValue: true
        limit: {runs_per_node}
      # Sensor runs mostly wait for records. Backfill runs use their cores all the time.
      - key: dagster/backfill
        limit: {backfill_max}

# Each slow tick occupies a thread, so that up to three slow ticks delay no other sensor.
sensors:
  use_threads: true
  num_workers: 4

run_monitoring:
  enabled: true
  # The delay until the two timeouts below are noticed. Each check reads all unfinished runs.
  poll_interval_seconds: 15
  # A run starts within seconds, on a busy host within a minute. After this timeout it is marked as
  # failed, and a new run is launched for its shards.
  start_timeout_seconds: 180
  # A terminated run ends at once, in the middle of a batch. After this timeout it counts as hung.
  cancel_timeout_seconds: 60

retention:
  # Days that ticks are kept. Each stream has thousands of skipped ticks a day.
  sensor:
    purge_after_days:
      skipped: 1
      started: 7
      failure: 7
      success: 7
  # Days that ticks are kept, as for sensors.
  schedule:
    purge_after_days: 7

telemetry:
  enabled: false

# The UI shows no invitation to register before its first page.
nux:
  enabled: false
"""

_RETRIES = """
# A run resumes from its shards' checkpoints, so a run whose process died can safely be retried. A
# run that failed with an error is not retried, since it would fail again.
run_retries:
  enabled: true
  max_retries: 1
  retry_on_asset_or_op_failure: false
"""

_MYSQL = """
# Create the database with the collation utf8mb4_bin: under a case-insensitive collation, the
# shards 'a' and 'A' would share a partition. Unlike Dagster's own class, this one has timeouts.
storage:
  custom:
    module: dagster_leasehold.orchestration.dagster_storage
    class: LimitedMySQLStorage
    config:
      mysql_db:
        hostname:
          env: DAGSTER_MYSQL_HOSTNAME
        port:
          env: DAGSTER_MYSQL_PORT
        username:
          env: DAGSTER_MYSQL_USERNAME
        password:
          env: DAGSTER_MYSQL_PASSWORD
        db_name:
          env: DAGSTER_MYSQL_DATABASE
      # The timeout of each reply. With many events, `dagster instance migrate` can need more.
      statement_limit_s: 30
"""


_LAUNCHER = """
# Starts each run on the node in its tag `leasehold/node`, or on the node that holds its shard.
run_launcher:
  module: dagster_leasehold.orchestration.supervision.node_launcher
  class: NodeRunLauncher
"""


def _limited(runs_max: int, backfill_max: int) -> str:
    return _COMMON.format(
        runs_max=runs_max, runs_per_node=RUNS_PER_NODE_MAX, backfill_max=backfill_max
    )


def nodes_text(*, runs_max: int = 32, mysql: bool = False) -> str:
    """Return the `dagster.yaml` of `leasehold dev --nodes`, for nodes with agents."""
    storage = _MYSQL if mysql else ""
    # The first backfill run on a node takes over its queued ones, so one run per node is enough.
    backfill_max = min(BACKFILL_RUNS_MAX, max(1, runs_max // 2 - 1))
    return f"{OWNED_MARK}\n{_limited(runs_max, backfill_max)}{_LAUNCHER}{storage}"


def embedded_text(*, mysql: bool = False) -> str:
    """Return the default `dagster.yaml`, with SQLite in Dagster's home and few runs."""
    storage = _MYSQL if mysql else ""
    return f"{OWNED_MARK}\n{_limited(16, 3)}{storage}"


def production_text() -> str:
    """Return a `dagster.yaml` for production, with MySQL or MariaDB.

    The environment variables `DAGSTER_MYSQL_HOSTNAME`, `_PORT`, `_USERNAME`, `_PASSWORD` and
    `_DATABASE` describe the database. Runs start on their nodes' agents, if nodes have agents. A
    new node needs no change of the file.

    Examples:
        >>> "run_launcher:" in production_text()
        True
    """
    return f"{_limited(32, BACKFILL_RUNS_MAX)}{_RETRIES}{_LAUNCHER}{_MYSQL}"


def create_instance(settings: Settings, text: str | None = None) -> Path:
    """Create Dagster's home, and return it; repeated and concurrent calls are safe.

    The first process that opens a new SQLite home creates its tables, and a second process that
    does so at the same time fails. So this function creates the tables under a file lock, before
    any of Dagster's processes starts.

    Args:
        text: the content of `dagster.yaml`; None is the embedded default. A `dagster.yaml` or
            `workspace.yaml` without our mark was written by a user, and stays.
    """
    home = settings.dagster_home
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / ".create.lock"):
        _write_config(home / INSTANCE_FILE, text or embedded_text())
        _write_config(settings.workspace_file, _WORKSPACE)
        _create_tables(home)
    return home


def _write_config(path: Path, text: str) -> None:
    if path.exists():
        current = path.read_text(encoding="utf-8")
        if current == text or OWNED_MARK not in current:
            return
    replace_file(path, text)


def _create_tables(home: Path) -> None:
    from dagster import DagsterInstance

    with DagsterInstance.from_config(str(home)) as instance:
        instance.get_runs_count()
        instance.get_dynamic_partitions("-")
