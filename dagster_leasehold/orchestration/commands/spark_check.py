"""The check of Spark in `leasehold doctor`, on this host and in a worker."""

from __future__ import annotations

import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.errors import LeaseholdError, counted, listed
from dagster_leasehold.lease_store.release import RELEASE
from dagster_leasehold.orchestration.commands.findings import Finding, Health, findings_of
from dagster_leasehold.orchestration.commands.target import Target, source_name
from dagster_leasehold.orchestration.supervision import preflight

if TYPE_CHECKING:
    from dagster_leasehold.assets.shard_stream import ShardStream

PART = "spark worker"
PARSERS = ("numpy", "msgspec")
OPTIONS = "pydantic"
PAGE = "docs/how-to/spark.md"
# Spark compares the Python versions before it runs our function, and fails with this message.
_OTHER_PYTHON = re.compile(r"Python in worker has different version: (\d+\.\d+)")

Versions = Mapping[str, str]


def spark_runtime(target: Target, *, started: bool) -> Iterator[Finding]:
    """Yield the versions of Spark and Python here and, if `started`, in a worker."""
    from dagster_leasehold.assets.spark.spark_session import require_listener
    from dagster_leasehold.assets.spark.spark_settings import CONNECT_SCHEME

    preflight.check_folder()
    preflight.check_spark(target.settings)
    spark = target.settings.spark
    if spark.engine.startswith(CONNECT_SCHEME):
        require_listener(spark.engine)
    count = counted(len(spark.conf), "setting")
    conf = f" with {count} in conf" if spark.conf else ""
    heap = f", {spark.memory} of memory" if spark.memory else ""
    on_host = f"{_text(versions_here())}, dagster-leasehold {RELEASE}"
    yield Finding("spark", Health.OK, f"{spark.engine}{heap}{conf}; here {on_host}.")
    if started:
        yield from findings_of(PART, lambda: worker(target))


def worker(target: Target) -> Iterator[Finding]:
    """Start a session, and compare a worker with this host and with the streams' requirements."""
    from dagster_leasehold.orchestration.resources import spark_of

    streams = list(_streams(target))
    needs = needs_of(streams)
    names = {name for _, modules in needs for name in modules}
    try:
        on_worker = worker_versions(spark_of(target.settings).spark_session, sorted(names))
    except Exception as error:
        mismatch = _OTHER_PYTHON.search(str(error))
        if mismatch is None:
            raise
        yield _different_python(mismatch[1])
        return
    findings = [
        *_different_versions(versions_here(), on_worker),
        *_missing_modules(needs, on_worker),
    ]
    yield from findings or [Finding(PART, Health.OK, f"{_text(on_worker)}.")]


def versions_here() -> Versions:
    """Return the versions of Python, PySpark and pyarrow in this process."""
    import pyarrow as pa

    from dagster_leasehold.assets.spark.spark_versions import version_here

    return {
        "Python": platform.python_version(),
        "pyspark": version_here(),
        "pyarrow": pa.__version__,
    }


def worker_versions(session: object, modules: Sequence[str]) -> Versions:
    """Return the versions of Python, PySpark and pyarrow in a worker of a Spark session.

    Importable `modules` are included, with empty versions.
    """

    def versions_there(batches: Iterator[object]) -> Iterator[object]:
        # Only this function is sent to the worker, which can lack our modules.
        import platform
        from importlib.util import find_spec

        import pyarrow as pa
        import pyspark

        versions = {
            "Python": platform.python_version(),
            "pyspark": pyspark.__version__,
            "pyarrow": pa.__version__,
            **{name: "" for name in modules if find_spec(name)},
        }
        columns = {"name": list(versions), "version": list(versions.values())}
        for _ in batches:
            yield pa.RecordBatch.from_pydict(columns)

    frame = session.range(0, 1, 1, 1)  # pyright: ignore
    rows = frame.mapInArrow(versions_there, "name string, version string").collect()
    return {row.name: row.version for row in rows}


def needs_of(streams: Iterable[ShardStream]) -> dict[tuple[str, tuple[str, ...]], list[str]]:
    """Map (reason, modules) to the streams that need these modules on workers."""
    from dagster_leasehold.shard_sources.registry import LOCAL_LOG, source_kind

    needs: defaultdict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for stream in streams:
        # The check of sources reports an unusable source.
        with suppress(LeaseholdError):
            source = source_name(stream.source)
            if source != LOCAL_LOG:
                library = source_kind(source).library
                modules = (library, OPTIONS) if library else (OPTIONS,)
                needs[f"the source {source} of", modules].append(str(stream.name))
        if stream.transform is not None:
            words = "parse_json and parse_csv in the transform of"
            needs[words, PARSERS].append(str(stream.name))
        if stream.decode is not None:
            needs["decoding the records of", stream.decode.modules].append(str(stream.name))
    return needs


def _streams(target: Target) -> Iterator[ShardStream]:
    """Yield the usable declared streams; the check of sources reports the others."""
    names: Sequence[str] = ()
    with suppress(LeaseholdError):
        names = target.streams.names
    for name in names:
        with suppress(LeaseholdError):
            yield target.streams.find(name)


def _different_versions(on_host: Versions, on_worker: Versions) -> Iterator[Finding]:
    from dagster_leasehold.assets.spark.spark_versions import releases_agree

    if _minor(on_worker["Python"]) != _minor(on_host["Python"]):
        yield _different_python(_minor(on_worker["Python"]))
    if on_host["pyspark"] != on_worker["pyspark"] and not releases_agree(
        on_host["pyspark"], on_worker["pyspark"]
    ):
        text = (
            f"it has pyspark {on_worker['pyspark']}, but this host has {on_host['pyspark']}: "
            f"install compatible versions, see {PAGE}."
        )
        yield Finding(PART, Health.FAILED, text)
    if on_host["pyarrow"] != on_worker["pyarrow"]:
        text = (
            f"it has pyarrow {on_worker['pyarrow']}, but this host has {on_host['pyarrow']}: "
            "install the same version on the workers, so that transforms have the same results."
        )
        yield Finding(PART, Health.WARNING, text)


def _different_python(minor: str) -> Finding:
    text = (
        f"it has Python {minor}, but this host has {_minor(platform.python_version())}: install "
        "the same minor version on the workers. If it has another path there, set "
        "spark.sql.execution.pyspark.python in [spark.conf]."
    )
    return Finding(PART, Health.FAILED, text)


def _missing_modules(
    needs: Mapping[tuple[str, tuple[str, ...]], list[str]], on_worker: Versions
) -> Iterator[Finding]:
    for (words, modules), streams in needs.items():
        missing = [name for name in modules if name not in on_worker]
        if missing:
            text = (
                f"it lacks {listed(missing)}, for {words} {listed(streams)}: install these modules "
                f"on the workers, or send them in an environment, see {PAGE}."
            )
            yield Finding(PART, Health.WARNING, text)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _text(versions: Versions) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items() if number)
