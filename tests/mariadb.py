"""A private MariaDB server for tests; it starts from a copy of a folder that was made once."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.database_server import (
    START_TIMEOUT_S,
    DatabaseServer,
    account,
    cache_folder,
    initialized_once,
    program,
)
from tests.ports import free_port


def available() -> bool:
    """Return True if a MariaDB server is installed."""
    return program("mariadbd") is not None and program("mariadb-install-db") is not None


@dataclass(slots=True)
class MariaDB(DatabaseServer):
    """A running MariaDB."""

    def command(self) -> list[str]:
        server = program("mariadbd")
        assert server is not None
        return [server, "--no-defaults"]


def _initialized() -> Path:
    """A data folder to copy, made at the first use of this release of the server."""
    install, server = program("mariadb-install-db"), program("mariadbd")
    assert install is not None
    assert server is not None
    version = subprocess.run(
        [server, "--no-defaults", "--version"],
        check=True,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
    ).stdout
    options = [*account(), "--auth-root-authentication-method=normal", "--skip-test-db"]
    made_by = sha256(" ".join([version, *options]).encode()).hexdigest()[:12]
    return initialized_once(
        cache_folder("mariadb") / f"data-{made_by}",
        lambda draft: [install, "--no-defaults", *options, f"--datadir={draft}"],
    )


@contextmanager
def running(in_folder: Callable[[Path], MariaDB] | None = None) -> Generator[MariaDB]:
    """A server that ends, with all its files, when the block does."""
    # Unix socket paths are short, and pytest's folders are not.
    folder = Path(tempfile.mkdtemp(prefix="lh-"))
    server = in_folder(folder) if in_folder else MariaDB(folder, free_port())
    try:
        shutil.copytree(_initialized(), folder / "data")
        server.start()
        yield server
    finally:
        server.stop(kill=True)
        shutil.rmtree(folder, ignore_errors=True)
