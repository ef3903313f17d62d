"""Starts the embedded Spark server beside everything else, so that the first run finds it warm."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from lease_store.errors import LeaseholdError
from orchestration.settings import Settings

JOIN_S = 150.0


class SparkWarmUp:
    """Starts Spark's server in a thread, to be entered with `with`; stops the server at the end.

    Does nothing where the settings name another kind of Spark.

    Attributes:
        error: why the server did not start, or None.
    """

    def __init__(self, settings: Settings) -> None:
        self.error: LeaseholdError | None = None
        self._folder = settings.spark_folder
        self._embedded = settings.spark == "connect"
        self._thread = threading.Thread(target=self._start, name="spark-warm-up", daemon=True)

    def _start(self) -> None:
        from assets.spark_session import connect_address

        try:
            connect_address(self._folder)
        except LeaseholdError as error:
            self.error = error

    def __enter__(self) -> Self:
        if self._embedded:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._embedded:
            return
        from assets.connect_server import stop

        # A server that is still starting has no state yet: it could not be stopped.
        self._thread.join(JOIN_S)
        stop(self._folder)
