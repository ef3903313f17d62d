"""A private MySQL server for tests: the machine's own, or the one that `make test` fetched.

`scripts/fetch_mysql.sh` unpacks a server and its libraries into a cache folder; it is started
through the loader that came with it. Each server starts from a copy of a folder that was
initialized once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.database_server import DatabaseServer, account, initialized_once, program
from tests.database_server import cache_folder as folder_of
from tests.ports import free_port

OLDEST = (8, 4)
_SMALL = "--innodb-redo-log-capacity=16M"


def cache_folder() -> Path:
    """The folder that `scripts/fetch_mysql.sh` fills."""
    return folder_of("mysql")


@cache
def server_command() -> tuple[str, ...] | None:
    """The server's program with its folders; None where there is none."""
    own = program("mysqld")
    if own is not None and _new_enough(own):
        return (own, "--no-defaults")
    folder = cache_folder()
    if not (folder / "installed").exists():
        return None
    usr = folder / "root" / "usr"
    (loader,) = (*usr.glob("lib64/ld-linux-*.so.2"), *usr.glob("lib/ld-linux-*.so.1"))
    (libraries,) = usr.glob("lib/*-linux-gnu")
    return (
        str(loader),
        "--library-path",
        str(libraries),
        str(usr / "sbin" / "mysqld"),
        "--no-defaults",
        f"--basedir={usr}",
        f"--lc-messages-dir={usr / 'share' / 'mysql'}",
        f"--plugin-dir={usr / 'lib' / 'mysql' / 'plugin'}",
    )


def _new_enough(server: str) -> bool:
    answer = subprocess.run(
        [server, "--version"], check=False, capture_output=True, text=True, timeout=60
    )
    version = re.search(r" Ver (\d+)\.(\d+)", answer.stdout)
    return (
        version is not None
        and "MariaDB" not in answer.stdout
        and (int(version[1]), int(version[2])) >= OLDEST
    )


def reason_missing() -> str | None:
    """Why there is no server here; None where there is one."""
    if server_command() is not None:
        return None
    note = cache_folder() / "missing"
    return note.read_text().strip() if note.exists() else "run scripts/fetch_mysql.sh for a MySQL"


@dataclass(slots=True)
class MySQL(DatabaseServer):
    """A running MySQL, with its binary log and its own TLS certificate, as it comes."""

    def command(self) -> list[str]:
        server = server_command()
        assert server is not None
        return [
            *server,
            _SMALL,
            "--mysqlx=OFF",
            "--sync-binlog=0",
            "--secure-file-priv=",
            # The account that makes the tables has no SUPER, as in docs/how-to/operations.md.
            "--log-bin-trust-function-creators=1",
        ]


def _initialized() -> Path:
    """A data folder to copy, made at its first use."""
    command = server_command()
    assert command is not None
    options = [*account(), _SMALL, "--initialize-insecure"]
    return initialized_once(
        cache_folder() / "data", lambda draft: [*command, *options, f"--datadir={draft}"]
    )


@contextmanager
def running() -> Generator[MySQL]:
    """A server that ends, with all its files, when the block does."""
    # Unix socket paths are short, and pytest's folders are not.
    folder = Path(tempfile.mkdtemp(prefix="lh-"))
    server = MySQL(folder, free_port())
    try:
        shutil.copytree(_initialized(), folder / "data")
        (folder / "data" / "auto.cnf").unlink(missing_ok=True)
        server.start()
        yield server
    finally:
        server.stop(kill=True)
        shutil.rmtree(folder, ignore_errors=True)
