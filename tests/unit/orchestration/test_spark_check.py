"""The lines of `leasehold doctor` about Spark: this host, and one of its workers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest

from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_versions import version_here
from dagster_leasehold.orchestration import resources
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands import doctor as doctor_module
from dagster_leasehold.orchestration.commands.spark_check import needs_of
from dagster_leasehold.orchestration.supervision import preflight
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.declared import declare, stream_text
from tests.unit.orchestration.consumed_home import ConsumedHome

MINOR = ".".join(platform.python_version_tuple()[:2])
PYSPARK = version_here()
KAFKA = {"bootstrap_servers": "127.0.0.1:9", "topic": "visits"}
Look = Callable[[Iterator[object]], Iterator[pa.RecordBatch]]


class Session:
    """A session whose only worker is this process, with another Python and other packages.

    Spark on a cluster comes with its own PySpark, which is installed as no distribution.
    """

    def __init__(
        self,
        python: str = f"{MINOR}.99",
        pyspark_version: str = PYSPARK,
        pyarrow: str = pa.__version__,
        lacks: tuple[str, ...] = (),
        refusal: str = "",
    ) -> None:
        self._versions = (python, pyspark_version, pyarrow)
        self._lacks, self._refusal = lacks, refusal
        self._look: Look | None = None

    def range(self, *_: int) -> SimpleNamespace:
        return SimpleNamespace(mapInArrow=self._map)

    def _map(self, look: Look, _schema: str) -> Self:
        self._look = look
        return self

    def collect(self) -> list[Any]:
        if self._refusal:
            raise RuntimeError(self._refusal)
        assert self._look is not None
        python, pyspark_version, pyarrow = self._versions
        spec, version = importlib.util.find_spec, importlib.metadata.version

        def installed(name: str) -> str:
            if name == "pyspark":
                raise importlib.metadata.PackageNotFoundError(name)
            return pyarrow if name == "pyarrow" else version(name)

        def spec_of(name: str) -> object:
            return None if name in self._lacks else spec(name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(platform, "python_version", lambda: python)
            patch.setattr("pyspark.__version__", pyspark_version)
            patch.setattr(pa, "__version__", pyarrow)
            patch.setattr(importlib.metadata, "version", installed)
            patch.setattr(importlib.util, "find_spec", spec_of)
            batches = list(self._look(iter([object()])))
        return [SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()]


Examine = Callable[[Session], tuple[int, list[dict[str, str]]]]


@pytest.fixture
def examine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Examine:
    """Run the doctor, and return its exit code and its line about a worker of a session."""
    monkeypatch.setattr(preflight, "check_spark", lambda _: None)
    monkeypatch.setattr(doctor_module, "sources", lambda _: iter(()))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    home = ConsumedHome(tmp_path / "home")

    def run(session: Session) -> tuple[int, list[dict[str, str]]]:
        monkeypatch.setattr(resources, "spark_of", lambda _: SimpleNamespace(spark_session=session))
        code = main(["doctor", "--spark", "--json", "--home", str(home.settings.home)])
        findings = json.loads(capsys.readouterr().out)["findings"]
        return code, [each for each in findings if each["part"] == "spark worker"]

    return run


def test_a_worker_of_the_same_minor_version_passes(examine: Examine) -> None:
    """PySpark is the one that the worker imports, wherever it comes from."""
    code, [finding] = examine(Session(lacks=("numpy", "msgspec", "pydantic", "confluent_kafka")))
    assert (code, finding["health"]) == (0, "ok")
    assert finding["text"] == (f"Python {MINOR}.99, pyspark {PYSPARK}, pyarrow {pa.__version__}.")


@pytest.mark.parametrize(
    "session",
    [
        Session(python="3.8.20"),
        Session(
            refusal="An exception was thrown\npyspark.errors.PySparkRuntimeError: "
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.8 than that in "
            f"driver: {MINOR}, PySpark cannot run with different minor versions.\nPlease check"
        ),
    ],
    ids=["by our look", "by Spark's own"],
)
def test_a_worker_of_another_minor_version_is_refused(examine: Examine, session: Session) -> None:
    code, [finding] = examine(session)
    assert (code, finding["health"]) == (1, "failed")
    assert finding["text"].startswith(f"it has Python 3.8, but this host has {MINOR}: ")


def test_a_worker_whose_job_fails_says_why(examine: Examine) -> None:
    code, [finding] = examine(Session(refusal="no pyarrow here"))
    assert (code, finding["health"]) == (1, "failed")
    assert finding["text"] == "RuntimeError: no pyarrow here"


def test_a_worker_of_another_release_of_spark_is_refused(examine: Examine) -> None:
    code, [finding] = examine(Session(pyspark_version="3.5.1"))
    assert (code, finding["health"]) == (1, "failed")
    assert "3.5.1" in finding["text"]


def test_another_pyarrow_is_a_warning(examine: Examine) -> None:
    code, [finding] = examine(Session(pyarrow="15.0.0"))
    assert (code, finding["health"]) == (0, "warning")
    assert finding["text"].startswith(
        f"it has pyarrow 15.0.0, but this host has {pa.__version__}: "
    )


@pytest.mark.parametrize(
    ("decode", "modules"),
    [
        (Decode("text"), ("numpy", "msgspec")),
        (Decode("avro", schema="order.avsc"), ("numpy", "msgspec", "fastavro")),
        (Decode("json-schema"), ("numpy", "msgspec", "confluent_kafka", "authlib")),
    ],
)
def test_decoding_needs_the_modules_of_its_format(
    tmp_path: Path, decode: Decode, modules: tuple[str, ...]
) -> None:
    stream = ShardStream("orders", LocalLog(tmp_path / "log"), decode=decode)
    assert needs_of([stream]) == {("decoding the records of", modules): ["orders"]}


def test_a_worker_without_a_library_of_a_stream_is_a_warning(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "visits_arrow.py").write_text(
        "from dagster_leasehold import arrow_transform\n\n"
        "@arrow_transform\ndef visits(records):\n    return records\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = declare(
        tmp_path,
        stream_text("visits", "kafka", options=KAFKA),
        stream_text("orders", "kafka", options=KAFKA),
        stream_text("clicks", transform="visits"),
        before="from visits_arrow import visits",
    )
    monkeypatch.setenv("LEASEHOLD_MODULE", module)
    code, findings = examine(Session(lacks=("confluent_kafka", "msgspec")))
    assert code == 0
    assert {each["health"] for each in findings} == {"warning"}
    source, parsing = (each["text"] for each in findings)
    assert source.startswith("it lacks confluent_kafka, for the source kafka of visits, orders: ")
    assert parsing.startswith(
        "it lacks msgspec, for parse_json and parse_csv in the transform of clicks: "
    )
    assert all("docs/how-to/spark.md" in text for text in (source, parsing))
    code, [finding] = examine(Session())
    assert (code, finding["health"]) == (0, "ok")
