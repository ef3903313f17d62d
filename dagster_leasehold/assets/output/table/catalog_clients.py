"""PyIceberg's catalog clients, with a timeout for each request.

PyIceberg has no timeout for REST, Hive and SQL, and tries 10 times for 60 s with Glue. When a
firewall drops the connection or a service hangs, a publisher would keep the publish lock until its
process ends.

Every request runs in a separate thread. The caller abandons it after `ANSWER_S`, whether the client
waits for a connection, a token, a lock, or a metadata file. Sockets of REST, Hive and MySQL have
the same timeout, so that the threads end. An abandoned request can still arrive; `other_catalog`
handles that.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError
from typing_extensions import override

from dagster_leasehold.assets.table_settings import SECRET_PROPERTY
from dagster_leasehold.lease_store.errors import one_line, without_secrets

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from requests import Session

T = TypeVar("T")

ANSWER_S = 50.0
"""The timeout of a request, in seconds: shorter than Dagster's timeout of a tick."""

_unanswered: dict[str, list[tuple[float, Future[Any]]]] = {}
_lock = threading.Lock()


def open_client(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return PyIceberg's client of a catalog, whose calls raise `TimeoutError` after `ANSWER_S`."""
    client = answered(name, partial(_open, name, properties))
    return cast("Catalog", _ClientWithTimeout(client))


class _ClientWithTimeout:
    """A client whose methods are called through `answered`."""

    def __init__(self, client: Catalog) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return answered(self._client.name, partial(method, *arguments, **named))


def answered(
    catalog: str, request: Callable[[], T], clock: Callable[[], float] = time.monotonic
) -> T:
    """Return the answer to a request.

    Raises:
        TimeoutError: there was no answer within `ANSWER_S`, or n earlier requests are unanswered
            and the newest one began less than n times `ANSWER_S` ago.
    """
    now_s, answer = clock(), Future[T]()
    with _lock:
        pending = [each for each in _unanswered.get(catalog, ()) if not each[1].done()]
        _unanswered[catalog] = pending
    # Without a timeout in the driver, a thread never ends. So each new request waits longer.
    if pending and (pause_s := max(pending)[0] + len(pending) * ANSWER_S - now_s) > 0:
        raise TimeoutError(
            f"no answer to {len(pending)} earlier requests; the next one is sent in {pause_s:.0f} s"
        )

    def work() -> None:
        try:
            answer.set_result(request())
        except ValidationError as error:
            # The error quotes the reply, which can contain credentials.
            fields = {".".join(map(str, each["loc"])) for each in error.errors()}
            refused = ", ".join(sorted(fields))
            answer.set_exception(ValueError(f"its reply is not valid in {refused}"))
        except BaseException as error:
            answer.set_exception(error)

    run = partial(contextvars.copy_context().run, work)
    threading.Thread(target=run, name=f"catalog {catalog}", daemon=True).start()
    try:
        return answer.result(ANSWER_S)
    except TimeoutError:
        if not answer.done():
            with _lock:
                _unanswered[catalog].append((now_s, answer))
            raise TimeoutError(f"no answer within {ANSWER_S:g} s") from None
        raise


def reason(error: Exception, name: str) -> str:
    """Return a catalog's error as text, without the secrets that a service's reply can contain."""
    from pyiceberg.utils.config import Config

    text = str(error)
    for each, value in (Config().get_catalog_config(name) or {}).items():
        # A credential is an id and a secret, separated by a colon.
        if SECRET_PROPERTY.search(each) and (secret := str(value).rpartition(":")[2]):
            text = text.replace(secret, "***")
    return f"{type(error).__name__}: {without_secrets(one_line(text))}"


def _open(name: str, properties: Mapping[str, str]) -> Catalog:
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    if catalog.PY_CATALOG_IMPL in properties:
        return catalog.load_catalog(name, **properties)
    conf: dict[str, Any] = {**(Config().get_catalog_config(name) or {}), **properties}
    named = conf.get(catalog.TYPE)
    kind = (
        catalog.CatalogType(str(named).lower()) if named else catalog.infer_catalog_type(name, conf)
    )
    if kind is catalog.CatalogType.REST:
        return _rest(name, conf)
    if kind is catalog.CatalogType.SQL and catalog.URI in conf:
        properties = {**properties, catalog.URI: _with_limits(conf[catalog.URI])}
    client = catalog.load_catalog(name, **properties)
    if kind is catalog.CatalogType.HIVE:
        _limit_sockets(client)
    return client


def _rest(name: str, conf: dict[str, Any]) -> Catalog:
    from pyiceberg.catalog.rest import RestCatalog

    class RestWithTimeout(RestCatalog):
        @override
        def _config_headers(self, session: Session) -> None:
            super()._config_headers(session)
            # Set before the first request, which can be for a token.
            cast("Any", session).request = partial(session.request, timeout=ANSWER_S)

    return RestWithTimeout(name, **conf)


def _limit_sockets(hive: Any) -> None:
    """Set the timeout of each socket of a Hive client, which opens one for almost every call."""
    from thrift.transport.TSocket import TSocket

    client = hive._client
    open_transport = client._init_thrift_transport

    def limited() -> Any:
        transport = open_transport()
        for part in vars(transport).values():
            if isinstance(part, TSocket):
                part.setTimeout(1_000 * ANSWER_S)
        return transport

    client._init_thrift_transport, client._transport = limited, limited()


def _with_limits(uri: str) -> str:
    """Return the address of a database with timeouts, if the driver is PyMySQL."""
    from sqlalchemy import make_url

    url = make_url(uri)
    if not url.drivername.endswith("+pymysql"):
        return uri
    limit_s = str(math.ceil(ANSWER_S))
    url = url.set(query={"read_timeout": limit_s, "write_timeout": limit_s, **url.query})
    return url.render_as_string(hide_password=False)
