"""The note in a home that says how its own MariaDB is reached: port, password, and addresses."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import SecretStr

FOLDER = "mariadb"
ACCESS_FILE = "access.json"
LOOPBACK = "127.0.0.1"
ACCOUNT = "leasehold"
LEASES, DAGSTER = "leasehold", "dagster"


@dataclass(frozen=True, slots=True)
class Access:
    """The way to reach the server of a home.

    Attributes:
        port: on the loopback.
        password: of the account `leasehold`.
    """

    port: int
    password: SecretStr

    @classmethod
    def of(cls, home: Path) -> Self | None:
        """Return the note of a home that has such a server, running or not; None if it has none."""
        try:
            noted = json.loads((home / FOLDER / ACCESS_FILE).read_text(encoding="utf-8"))
            return cls(int(noted["port"]), SecretStr(str(noted["password"])))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @property
    def store_url(self) -> SecretStr:
        """SQLAlchemy's URL of the lease store."""
        from sqlalchemy import URL

        secret = self.password.get_secret_value()
        url = URL.create("mysql+pymysql", ACCOUNT, secret, LOOPBACK, self.port, LEASES)
        return SecretStr(url.render_as_string(hide_password=False))

    @property
    def dagster_variables(self) -> dict[str, str]:
        """The variables that `dagster.yaml` reads from the environment, the password among them."""
        return {
            "DAGSTER_MYSQL_HOSTNAME": LOOPBACK,
            "DAGSTER_MYSQL_PORT": str(self.port),
            "DAGSTER_MYSQL_USERNAME": ACCOUNT,
            "DAGSTER_MYSQL_PASSWORD": self.password.get_secret_value(),
            "DAGSTER_MYSQL_DATABASE": DAGSTER,
        }

    def answers(self) -> bool:
        """Return True if something listens where the server would."""
        with suppress(OSError), socket.create_connection((LOOPBACK, self.port), timeout=2.0):
            return True
        return False


def dagster_variables(home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Dagster's storage, if it is in the home's server; else none."""
    access = Access.of(home)
    if access is None or environment.get("DAGSTER_MYSQL_HOSTNAME"):
        return {}
    return access.dagster_variables
