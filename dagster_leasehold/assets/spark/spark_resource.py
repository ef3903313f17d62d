"""The Spark session of a deployment, as a Dagster resource for runs.

Dagster can store and show a resource's configuration. So the configuration contains neither the
address with the session id nor the token; the run reads both at the first use.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dagster_leasehold.assets.errors import SessionLost, SparkUnavailable
from dagster_leasehold.assets.spark import shipped_code
from dagster_leasehold.assets.spark.connect_server import (
    ConnectServer,
    replace_session,
    running,
    stop,
)
from dagster_leasehold.assets.spark.spark_session import (
    builder_conf,
    configure_session,
    drop_session,
)
from dagster_leasehold.assets.spark.spark_settings import (
    CONNECT,
    CONNECT_SCHEME,
    TOKEN_VARIABLE,
    is_remote,
)
from dagster_leasehold.assets.spark.spark_versions import version_here
from dagster_leasehold.lease_store.errors import LeaseholdError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENT = "pyspark.sql.connect.session"
SESSION_CLOSED = "INVALID_HANDLE.SESSION_CLOSED"
ROOTS_VARIABLE = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
REFUSALS = {
    "UNAUTHENTICATED": f"refuses the token: set {TOKEN_VARIABLE} to the server's token",
    "CERTIFICATE_VERIFY_FAILED": "has a certificate that is not trusted: set spark.certificate to "
    "the file with its authority's certificate",
    SESSION_CLOSED: "has closed the session and no longer accepts its id: remove session_id from "
    "the address in the setting spark",
    "stopped SparkContext": "accepted no application: no master runs there, or its version of "
    "Spark is not {here} as on the nodes. See the master's log",
    "WRONG_VERSION_NUMBER": "does not speak TLS: remove spark.tls, and also the token, which is "
    "sent only over TLS",
}
"""Texts in errors of Spark's client, and the end of the error message for each."""


def spark_of_run(spark: object) -> SparkResource:
    """Return the Spark of a run's deployment, and start to import its client."""
    if not isinstance(spark, SparkResource):
        raise SparkUnavailable("This deployment has no Spark, which the run needs.")
    spark.begin_import()
    return spark


class SparkResource(dg.ConfigurableResource):  # pyright: ignore[reportMissingTypeArgument]
    """Spark as the deployment's settings describe it.

    Attributes:
        mode: `connect`, `sc://…`, or the address of a Spark master.
        folder: the folder for the embedded server's state and a shim for Java.
        conf: the user's configuration of Spark; it holds no secrets.
        certificate: the file with the certificates to trust at `sc://…`; empty for gRPC's defaults.
        environment_archive: the archive of the workers' environment; empty if they have their own.
    """

    mode: str = CONNECT
    folder: str
    conf: dict[str, str] = Field(default_factory=dict)
    certificate: str = ""
    environment_archive: str = ""
    _supplier: Any = PrivateAttr(default=None)
    _server: Any = PrivateAttr(default=None)
    _imports: Any = PrivateAttr(default=None)

    def begin_import(self) -> None:
        """Import Spark's client in the background, while the run opens its shards."""
        if self._is_client and self._imports is None:
            self._imports = Thread(target=_import_client, name="import of Spark")
            self._imports.start()

    @property
    def spark_session(self) -> SparkSession:
        """The session, with an embedded server that is started if none runs."""
        if self._supplier is None:
            try:
                self._supplier = self._new_supplier()
            except SessionLost:
                if not self._replace_shared_session():
                    raise
                self._supplier = self._new_supplier()
        return self._supplier.spark_session

    def renewed_session(self) -> SparkSession | None:
        """Return a session in place of a lost one.

        A run with outdated settings gets none, because runs would end each other's servers:

        1. Spark's settings change while run A works, and run B starts with the new settings.
        2. B ends the server and starts another, so A loses its session.
        3. If A started a server with its old settings, it would end B's server. B would then end
           A's.

        Returns:
            The session; None if this process is the driver, or a server with other settings runs.
        """
        if not self._is_client or self._superseded:
            return None
        lost, self._supplier = self._supplier, None
        if lost is not None:
            drop_session(lost.spark_session)
        self._replace_shared_session()
        return self.spark_session

    @property
    def _is_client(self) -> bool:
        """True if sessions are with a Connect server."""
        return self.mode == CONNECT or self.mode.startswith(CONNECT_SCHEME)

    @property
    def _superseded(self) -> bool:
        ours: ConnectServer | None = self._server
        now = running(Path(self.folder)) if ours is not None else None
        return ours is not None and now is not None and now.version != ours.version

    def _replace_shared_session(self) -> bool:
        """Replace the session that runs share; return False if no embedded server runs.

        If another run has already replaced it, the new session stays.
        """
        return self._server is not None and replace_session(Path(self.folder), self._server)

    def _new_supplier(self) -> Any:
        if self._imports is not None:
            # Spark's modules import each other. A second import now would see incomplete modules.
            self._imports.join()
        from dagster_pyspark import LazyPySparkResource

        if self.certificate:
            # gRPC reads it when the process opens its first channel.
            os.environ[ROOTS_VARIABLE] = self.certificate
        conf = builder_conf(self.mode, Path(self.folder), self.conf)
        if self.mode == CONNECT:
            self._server = ConnectServer.read(Path(self.folder))
        supplier = LazyPySparkResource(spark_config=conf)
        session: Any = None
        try:
            session = supplier.spark_session
            configure_session(session, self.conf if self.mode.startswith(CONNECT_SCHEME) else {})
            if is_remote(self.mode):
                shipped_code.begin(session, self.environment_archive)
        except LeaseholdError:
            raise
        except Exception as error:
            sentence = f"Spark ({self.mode}) {_refusal(error)}."
            if SESSION_CLOSED not in str(error):
                raise SparkUnavailable(sentence) from error
            if session is not None:
                drop_session(session)
            raise SessionLost(sentence) from error
        return supplier

    def end_server(self) -> bool:
        """End the embedded server that this run has used, because it no longer works.

        Returns:
            False if this run has used no embedded server, or another server runs now.
        """
        return self._server is not None and stop(Path(self.folder), only=self._server)


def _refusal(error: Exception) -> str:
    """Return the end of an error message: why there is no session, and what to do."""
    text = str(error)
    for mark, refusal in REFUSALS.items():
        if mark in text:
            return refusal.format(here=version_here())
    details = getattr(error, "details", None)
    text = str(details()) if callable(details) else text
    first = next(iter(text.strip().splitlines()), type(error).__name__)
    return f"does not start or answer: {first[:200].rstrip('.')}"


def _import_client() -> None:
    # The first use of the session reports a missing module.
    with suppress(ImportError):
        import_module(CLIENT)
