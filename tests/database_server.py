"""A private database server for tests: own folder, a socket and a free port of the loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
USER = "leasehold"
PASSWORD = "leasehold-test"


def program(name: str) -> str | None:
    """The path of a server's program on this machine."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def account() -> list[str]:
    """The option without which a server refuses to run as root."""
    return ["--user=root"] if os.geteuid() == 0 else []


def cache_folder(kind: str) -> Path:
    """The folder of this machine's cache that belongs to one kind of server."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "leasehold" / kind


def initialized_once(data: Path, command: Callable[[Path], list[str]]) -> Path:
    """A data folder to copy, which the first process that needs it makes, for all others.

    Args:
        data: the folder.
        command: initializes the folder that it is given.

    Raises:
        RuntimeError: the program failed; its own words, and the free space of both disks.
    """
    data.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{data}.lock"):
        if not data.exists():
            draft = data.with_name(f"{data.name}.draft")
            shutil.rmtree(draft, ignore_errors=True)
            made = subprocess.run(
                command(draft),
                check=False,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=START_TIMEOUT_S,
            )
            if made.returncode:
                shutil.rmtree(draft, ignore_errors=True)
                raise RuntimeError(
                    f"{made.args[0]} could not make a database in {draft} (exit status "
                    f"{made.returncode}; {_free(data.parent)} free there, "
                    f"{_free(Path(tempfile.gettempdir()))} in the temporary folder):\n"
                    f"{made.stdout}\n{made.stderr}"
                )
            draft.rename(data)
    return data


def _free(folder: Path) -> str:
    return f"{shutil.disk_usage(folder).free / 2**30:.1f} GiB"


@dataclass(slots=True)
class DatabaseServer(ABC):
    """A running server.

    Attributes:
        folder: all its files.
        port: its port on 127.0.0.1.
        user, password: an account with all rights except those that need SUPER.
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
    def socket_lock(self) -> Path:
        """The file beside the socket in which MySQL's server stores its process number."""
        return self.folder / "s.lock"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def url(self, database: str, *, port: int | None = None, user: str | None = None) -> str:
        """SQLAlchemy's URL of a database, through TCP."""
        account = f"{user or self.user}:{self.password}"
        return f"mysql+pymysql://{account}@127.0.0.1:{port or self.port}/{database}"

    @abstractmethod
    def command(self) -> list[str]:
        """The program with the options that only this kind of server has."""

    def start(self, *options: str) -> None:
        """Start, or start again with the same data, and wait until it answers."""
        # A server that starts clears its temporary folder, which is no other server's therefore.
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        # A killed server leaves it, and the next one refuses if a process has that number again.
        self.socket_lock.unlink(missing_ok=True)
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen(
            [
                *self.command(),
                *account(),
                f"--datadir={self.folder / 'data'}",
                f"--socket={self.socket}",
                f"--pid-file={self.folder / 'pid'}",
                f"--tmpdir={temporary}",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                "--character-set-server=utf8mb4",
                "--collation-server=utf8mb4_bin",
                "--innodb-buffer-pool-size=64M",
                # Tests kill servers, never the machine that would have to write a log out.
                "--innodb-flush-log-at-trx-commit=2",
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
        """The end of the server's log."""
        return (self.folder / "server.log").read_text(errors="replace")[-4000:]

    def ended(self) -> bool:
        """Return True if the server has ended without `stop`."""
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

    def grant(self, database: str, *privileges: str, user: str | None = None) -> None:
        """Give an account, made where it is missing, these privileges on a database."""
        name = f"'{user or self.user}'@'127.0.0.1'"
        self.execute(
            f"CREATE USER IF NOT EXISTS {name} IDENTIFIED BY '{self.password}'",
            f"GRANT {', '.join(privileges)} ON `{database}`.* TO {name}",
        )

    def create_database(self, name: str) -> str:
        """A fresh, empty database; its URL."""
        self.execute(
            f"DROP DATABASE IF EXISTS `{name}`",
            f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        )
        self.grant(name, "ALL")
        return self.url(name)

    def of_deployment(self) -> dict[str, str]:
        """The variables that give hosts fresh databases for leases and Dagster's storage."""
        self.create_database("dagster")
        return {
            "LEASEHOLD_DATABASE_URL": self.create_database("leases"),
            "DAGSTER_MYSQL_HOSTNAME": "127.0.0.1",
            "DAGSTER_MYSQL_PORT": str(self.port),
            "DAGSTER_MYSQL_USERNAME": self.user,
            "DAGSTER_MYSQL_PASSWORD": self.password,
            "DAGSTER_MYSQL_DATABASE": "dagster",
        }

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")
