"""A private MariaDB server for tests: own folder, a unix socket and a free port of the loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_port

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
USER = "leasehold"
PASSWORD = "leasehold-test"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def available() -> bool:
    """Whether a MariaDB server is installed."""
    return _program("mariadbd") is not None and _program("mariadb-install-db") is not None


def _account() -> list[str]:
    # The server refuses to run as root unless it is told to.
    return ["--user=root"] if os.geteuid() == 0 else []


@dataclass(slots=True)
class MariaDB:
    """A running server.

    Attributes:
        folder: everything it owns.
        port: on 127.0.0.1.
        user, password: an account that may do everything except what needs SUPER.
    """

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    user: str = USER
    password: str = PASSWORD

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def url(self, database: str, *, port: int | None = None, user: str | None = None) -> str:
        """SQLAlchemy's URL of a database, through TCP."""
        account = f"{user or self.user}:{self.password}"
        return f"mysql+pymysql://{account}@127.0.0.1:{port or self.port}/{database}"

    def start(self, *options: str) -> None:
        """Start, or start again with the same data, and wait until it answers."""
        program = _program("mariadbd")
        assert program is not None
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen(
            [
                program,
                "--no-defaults",
                *_account(),
                f"--datadir={self.folder / 'data'}",
                f"--socket={self.socket}",
                f"--pid-file={self.folder / 'pid'}",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                "--character-set-server=utf8mb4",
                "--collation-server=utf8mb4_bin",
                "--innodb-buffer-pool-size=64M",
                "--innodb-flush-log-at-trx-commit=1",
                "--max-connections=200",
                "--performance-schema=OFF",
                "--skip-name-resolve",
                *options,
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._wait()

    def _wait(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.execute("SELECT 1")
            except Exception:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(self.log()) from None
                time.sleep(0.05)
            else:
                return

    def log(self) -> str:
        """What the server has said."""
        return (self.folder / "server.log").read_text(errors="replace")[-4000:]

    def ended(self) -> bool:
        """Whether it has ended without having been told to by `stop`."""
        return self.process is not None and self.process.poll() is not None

    def stop(self, *, kill: bool = False) -> None:
        """Stop it, gently or as a crash."""
        if self.process is None:
            return
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)
        self.process = None

    def connect(self, database: str | None = None) -> Any:
        """A driver connection as root through the socket, in autocommit."""
        import pymysql

        return pymysql.connect(
            unix_socket=str(self.socket),
            user="root",
            database=database,
            autocommit=True,
            connect_timeout=5,
            read_timeout=20,
        )

    def execute(self, *statements: str, database: str | None = None) -> list[Any]:
        """Run statements as root; the rows of the last one."""
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                rows: list[Any] = []
                for statement in statements:
                    cursor.execute(statement)
                    rows = list(cursor.fetchall())
                return rows
        finally:
            connection.close()

    def create_database(self, name: str) -> str:
        """A fresh, empty database; its URL."""
        self.execute(
            f"DROP DATABASE IF EXISTS `{name}`",
            f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            f"GRANT ALL ON `{name}`.* TO '{self.user}'@'127.0.0.1' IDENTIFIED BY '{self.password}'",
        )
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")


@contextmanager
def running() -> Generator[MariaDB]:
    """A server that ends, with all its files, when the block does."""
    # Unix socket paths are short, and pytest's folders are not.
    folder = Path(tempfile.mkdtemp(prefix="lh-"))
    server = MariaDB(folder, free_port())
    try:
        install = _program("mariadb-install-db")
        assert install is not None
        subprocess.run(
            [
                install,
                "--no-defaults",
                *_account(),
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
