"""The Dagster instance of a deployment: its `dagster.yaml`, and the one-time set-up of its home."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.orchestration.project_module import DEFINITIONS_MODULE
from dagster_leasehold.orchestration.settings import LOCATION, Settings

OWNED_MARK = "# Written by leasehold at every start; remove this line to keep your own changes."
INSTANCE_FILE = "dagster.yaml"
BACKFILL_RUNS_MAX = 16
"""The most runs of one backfill at a time, on any number of hosts."""

_WORKSPACE = f"""\
{OWNED_MARK}
load_from:
  - python_module:
      module_name: {DEFINITIONS_MODULE}
      location_name: {LOCATION}
"""

RUNS_PER_NODE_MAX = 8
"""Of all streams together: a stream has at most two, and most have one, which waits for records."""

_COMMON = """\
# A run that a sensor requests for a node begins at once while no run waits and no limit is near.
# All others wait in Dagster's queue, which is emptied every second.
run_coordinator:
  module: dagster_leasehold.orchestration.supervision.run_queue
  class: PromptRunCoordinator
  config:
    dequeue_interval_seconds: 1
    # One node that answers late must not keep the runs of the others waiting.
    dequeue_use_threads: true
    dequeue_num_workers: 4

concurrency:
  runs:
    # Runs of all nodes together; more of them wait in the queue, so raise it with the nodes.
    max_concurrent_runs: {runs_max}
    # These save work; what keeps a shard safe is its lease. Assets that share shard ids also
    # share the first limit.
    tag_concurrency_limits:
      - key: dagster/partition
        value:
          applyLimitPerUniqueValue: true
        limit: 1
      # Each run is a process of about half a gibibyte.
      - key: leasehold/node
        value:
          applyLimitPerUniqueValue: true
        limit: {runs_per_node}
      # Runs of the sensors mostly wait for records; runs of a backfill work.
      - key: dagster/backfill
        limit: {backfill_max}

# Without threads, one slow tick of one sensor delays all the others; so only four at once do.
sensors:
  use_threads: true
  num_workers: 4

run_monitoring:
  enabled: true
  # How late the two limits below can be noticed: each look asks for all runs that are not over.
  poll_interval_seconds: 15
  # A run begins within seconds, on a busy host within a minute. One that does not fails, and its
  # shards are launched again.
  start_timeout_seconds: 180
  # A run that is terminated ends at once, in the middle of a batch. One that does not hangs.
  cancel_timeout_seconds: 60

retention:
  # Most ticks are skipped, thousands a day for each stream: of these a day is kept, and of those
  # that did something a week, for later questions.
  sensor:
    purge_after_days:
      skipped: 1
      started: 7
      failure: 7
      success: 7
  # As for sensors.
  schedule:
    purge_after_days: 7

telemetry:
  enabled: false

# No invitation in front of the first page.
nux:
  enabled: false
"""

_RETRIES = """
# A run resumes from its shards' checkpoints, so that repeating one whose process died is safe. One
# that failed has said why in a sentence, and would say it again.
run_retries:
  enabled: true
  max_retries: 1
  retry_on_asset_or_op_failure: false
"""

_MYSQL = """
# One schema for Dagster, created with utf8mb4_bin: under a case-blind collation the partitions
# of the shards 'a' and 'A' would be one. Dagster's own class would wait for a silent server for
# ever.
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
      # For each reply. `dagster instance migrate` can need more, where there are many events.
      statement_limit_s: 30
"""


_LAUNCHER = """
# Each run goes to the node that its tag `leasehold/node` names, or that holds its shard.
run_launcher:
  module: dagster_leasehold.orchestration.supervision.node_launcher
  class: NodeRunLauncher
"""


def _limited(runs_max: int, backfill_max: int) -> str:
    return _COMMON.format(
        runs_max=runs_max, runs_per_node=RUNS_PER_NODE_MAX, backfill_max=backfill_max
    )


def nodes_text(*, runs_max: int = 32, mysql: bool = False) -> str:
    """Return `dagster.yaml` for nodes that have agents, as `leasehold dev --nodes` writes it."""
    storage = _MYSQL if mysql else ""
    # The first run of a node takes over the waiting ones: one of each node is enough.
    backfill_max = min(BACKFILL_RUNS_MAX, max(1, runs_max // 2 - 1))
    return f"{OWNED_MARK}\n{_limited(runs_max, backfill_max)}{_LAUNCHER}{storage}"


def embedded_text(*, mysql: bool = False) -> str:
    """Return `dagster.yaml` of the embedded default: SQLite in Dagster's home, and few runs."""
    storage = _MYSQL if mysql else ""
    return f"{OWNED_MARK}\n{_limited(16, 3)}{storage}"


def production_text() -> str:
    """Return a `dagster.yaml` for MySQL or MariaDB; the environment has address and password.

    Runs go to the nodes' agents, if there are any. A new node needs no change of the file.

    The variables are `DAGSTER_MYSQL_HOSTNAME`, `_PORT`, `_USERNAME`, `_PASSWORD`, `_DATABASE`.

    Examples:
        >>> "run_launcher:" in production_text()
        True
    """
    return f"{_limited(32, BACKFILL_RUNS_MAX)}{_RETRIES}{_LAUNCHER}{_MYSQL}"


def create_instance(settings: Settings, text: str | None = None) -> Path:
    """Make Dagster's home ready and return it; safe to repeat, and from several processes.

    The first process to open a fresh SQLite home creates its tables, and a second one that starts
    at the same moment dies in the attempt. So the tables are made here, once, under a file lock,
    before any of Dagster's processes starts.

    Args:
        settings: whose `dagster_home` is made.
        text: the content of `dagster.yaml`; None is the embedded default. A file without our mark
            was written by a user and stays, and so does a `workspace.yaml`.
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
