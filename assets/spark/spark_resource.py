"""The Spark session as a Dagster resource, supplied by `dagster_pyspark` when a run needs it.

Dagster stores and shows a resource's configuration, so it holds neither the address with its
session nor the token: both are looked up in the run, at the first use.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import PrivateAttr
from typing_extensions import override

from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark.connect_server import ConnectServer, stop
from dagster_leasehold.assets.spark.spark_session import (
    CONNECT,
    CONNECT_SCHEME,
    builder_conf,
    check_mode,
    settle,
)
from dagster_leasehold.lease_store.errors import LeaseholdError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENT = "pyspark.sql.connect.session"


class SparkResource(dg.ConfigurableResource):  # pyright: ignore[reportMissingTypeArgument]
    """Spark as the deployment's settings describe it.

    Attributes:
        mode: `connect`, `classic`, `sc://…`, or the address of a Spark master.
        folder: where the embedded server keeps its state and a shim for Java may be written.
    """

    mode: str = CONNECT
    folder: str
    _supplier: Any = PrivateAttr(default=None)
    _server: Any = PrivateAttr(default=None)
    _imports: Any = PrivateAttr(default=None)

    @override
    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Import Spark's client on a thread: half a second, while the run opens its shards."""
        if self.mode == CONNECT or self.mode.startswith(CONNECT_SCHEME):
            self._imports = Thread(target=_import_client, name="import of Spark")
            self._imports.start()

    @property
    def spark_session(self) -> SparkSession:
        """The session; the embedded server is started if none runs.

        Raises:
            InvalidSetting: the mode is not valid.
            JavaNotFound: there is no Java to run Spark.
            SparkUnavailable: Spark does not start or answer.
        """
        if self._supplier is None:
            self._supplier = self._new_supplier()
        return self._supplier.spark_session

    def _new_supplier(self) -> Any:
        if self._imports is not None:
            # Two threads that import modules in a circle would see halves of them.
            self._imports.join()
        from dagster_pyspark import LazyPySparkResource

        conf = builder_conf(check_mode(self.mode), Path(self.folder))
        if self.mode == CONNECT:
            self._server = ConnectServer.read(Path(self.folder))
        supplier = LazyPySparkResource(spark_config=conf)
        try:
            settle(supplier.spark_session)
        except LeaseholdError:
            raise
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise SparkUnavailable(
                f"Spark ({self.mode}) does not start or answer: {first[:200]}."
            ) from error
        return supplier

    def end_server(self) -> bool:
        """End the embedded server that this run has used, because it does not work any more.

        Returns:
            False where there was none of ours, or another one runs by now.
        """
        return self._server is not None and stop(Path(self.folder), only=self._server)


def _import_client() -> None:
    # What is missing, the first use of the session says.
    with suppress(ImportError):
        import_module(CLIENT)
