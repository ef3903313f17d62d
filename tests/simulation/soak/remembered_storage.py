"""Dagster's storage in memory, asked once for what has not changed since.

Most ticks of a soak find the runs, cursors and partitions of the tick before. Answers are kept
until anything is written, so that two years of ticks cost minutes instead of hours; what is
written, and what is answered after that, is the real storage's.
"""

from __future__ import annotations

from typing import Any

READS = frozenset(
    {
        "get_runs", "get_run_records", "get_runs_count", "get_run_ids", "get_run_by_id",
        "get_cursor_values", "get_dynamic_partitions", "has_dynamic_partition", "has_run",
        "fetch_materializations", "get_daemon_heartbeats",
    }
)  # fmt: skip
OF_CURSORS = frozenset({"get_cursor_values", "set_cursor_values"})
"""Cursors are apart from everything else: a write there changes no other answer."""
LOOKS = frozenset({"index_connection", "connect", "supports_kvs", "is_persistent"})


class RememberedStorage:
    """A storage of Dagster whose answers hold until the next write to it."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self._answers: dict[str, Any] = {}
        self._cursors: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._storage, name)
        if not callable(target) or name in LOOKS:
            return target
        answers = self._cursors if name in OF_CURSORS else self._answers
        if name not in READS:

            def written(*args: Any, **options: Any) -> Any:
                answers.clear()
                return target(*args, **options)

            return written

        def answered(*args: Any, **options: Any) -> Any:
            question = f"{name}{args}{options}"
            if question not in answers:
                answers[question] = target(*args, **options)
            return answers[question]

        setattr(self, name, answered)
        return answered
