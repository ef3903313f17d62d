"""A private MariaDB server for tests."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.database_server import START_TIMEOUT_S, DatabaseServer, account, program
from tests.ports import free_port


def available() -> bool:
    """Whether a MariaDB server is installed."""
    return program("mariadbd") is not None and program("mariadb-install-db") is not None


@dataclass(slots=True)
class MariaDB(DatabaseServer):
    """A running MariaDB."""

    def command(self) -> list[str]:
        server = program("mariadbd")
        assert server is not None
        return [server, "--no-defaults"]


@contextmanager
def running() -> Generator[MariaDB]:
    """A server that ends, with all its files, when the block does."""
    # Unix socket paths are short, and pytest's folders are not.
    folder = Path(tempfile.mkdtemp(prefix="lh-"))
    server = MariaDB(folder, free_port())
    try:
        install = program("mariadb-install-db")
        assert install is not None
        subprocess.run(
            [
                install,
                "--no-defaults",
                *account(),
                f"--datadir={folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            check=True,
            capture_output=True,
            timeout=START_TIMEOUT_S,
        )
        server.start()
        yield server
    finally:
        server.stop(kill=True)
        shutil.rmtree(folder, ignore_errors=True)
