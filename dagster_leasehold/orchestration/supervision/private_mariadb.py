"""A MariaDB server of a home's own, where the machine has the program: for leases and Dagster.

It keeps its data in the home, listens on the loopback, and has one account, whose password only
this user can read. Whoever serves it holds a file lock: `leasehold dev`, or a command that finds it
stopped, for as long as the command lasts.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
from filelock import FileLock, Timeout
from pydantic import SecretStr

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.orchestration import mariadb_access
from dagster_leasehold.orchestration.supervision import preflight
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess

LOG_FILE = "server.log"
PROGRAM, INSTALLER = "mariadbd", "mariadb-install-db"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
LOCK_TIMEOUT_S = 60.0
LOG_SIZE = "--innodb-log-file-size=32M"
"""A third of the default, which every home would pay for on its disk."""


def installed() -> bool:
    """Return True if this machine has MariaDB's server."""
    return _program(PROGRAM) is not None and _program(INSTALLER) is not None


def room_needed(home: Path) -> int:
    """Return the bytes that a home with a server of its own writes soon."""
    made = (home / mariadb_access.FOLDER / "data").exists()
    return preflight.HOME_BYTES if made else preflight.HOME_BYTES + preflight.SERVER_BYTES


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class PrivateMariaDB:
    """The server of a home, to be entered with `with`; it is made the first time.

    Raises:
        NoSpace: at entry: the disk has too little room.
        StoreUnavailable: at entry: MariaDB is not installed, does not start, or another process
            serves this one and does not end.
    """

    def __init__(self, home: Path) -> None:
        self._home = home.absolute()
        self._folder = self._home / mariadb_access.FOLDER
        self._process: ChildProcess | None = None
        self._lock = FileLock(self._home / f".{mariadb_access.FOLDER}.lock")
        self._socket_folder: str | None = None

    @property
    def process(self) -> ChildProcess:
        """The server's process."""
        assert self._process is not None
        return self._process

    def __enter__(self) -> Self:
        program = _program(PROGRAM)
        if program is None or not installed():
            raise StoreUnavailable(
                f"The lease store of {self._home} is a MariaDB in its folder {self._folder.name}, "
                f"and this machine has no {PROGRAM}: install mariadb-server."
            )
        try:
            self._lock.acquire(timeout=LOCK_TIMEOUT_S)
        except Timeout:
            raise StoreUnavailable(
                f"Another process serves the MariaDB of {self._home}: end the `leasehold` command "
                "that is at work on this home first."
            ) from None
        try:
            self._end_leftover()
            preflight.require_room(self._home, room_needed(self._home))
            self._create()
            self._start(program)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server, and let others serve it."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = None
        self._lock.release()

    def _end_leftover(self) -> None:
        """End a server that outlived whoever served it and was killed.

        Two servers on one data folder refuse each other, so this one would not start.
        """
        with suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int((self._folder / "pid").read_text()))
            if str(self._folder / "data") in " ".join(process.cmdline()):
                process.terminate()
                process.wait(STOP_TIMEOUT_S)

    def _create(self) -> None:
        """Make the data folder, in one step."""
        data = self._folder / "data"
        if data.exists():
            return
        self._folder.mkdir(exist_ok=True, mode=0o700)
        draft = self._folder / "data.draft"
        shutil.rmtree(draft, ignore_errors=True)
        done = subprocess.run(
            [
                _program(INSTALLER) or INSTALLER,
                "--no-defaults",
                *_as_root(),
                f"--datadir={draft}",
                # Its superuser is this user of the machine, through the socket alone.
                "--auth-root-authentication-method=socket",
                f"--auth-root-socket-user={getpass.getuser()}",
                "--skip-test-db",
                LOG_SIZE,
            ],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            with suppress(OSError):
                (self._folder / LOG_FILE).write_text(done.stdout + done.stderr, encoding="utf-8")
            # Half-made it may fill the disk, which is then what the user has to hear of.
            try:
                preflight.require_room(self._home, preflight.MIB)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            raise StoreUnavailable(
                f"MariaDB could not be set up in {self._folder}: see {LOG_FILE} there, or use "
                "--sqlite in another home."
            )
        draft.rename(data)

    def _start(self, program: str) -> None:
        access = self._noted_access()
        # The path of a socket may have about a hundred characters, and a home's may have more.
        self._socket_folder = tempfile.mkdtemp(prefix="leasehold-")
        self._process = ChildProcess(
            "MariaDB",
            [
                program,
                "--no-defaults",
                *_as_root(),
                f"--datadir={self._folder / 'data'}",
                f"--socket={self._socket_folder}/s",
                f"--pid-file={self._folder / 'pid'}",
                f"--init-file={self._account_file(access)}",
                f"--bind-address={mariadb_access.LOOPBACK}",
                f"--port={access.port}",
                "--skip-name-resolve",
                "--character-set-server=utf8mb4",
                "--collation-server=utf8mb4_bin",
                "--innodb-flush-log-at-trx-commit=1",
                LOG_SIZE,
                "--innodb-buffer-pool-size=128M",
                # Dagster opens a connection for each statement of its daemon and its runs.
                "--max-connections=500",
                "--performance-schema=OFF",
            ],
            log=self._folder / LOG_FILE,
            environment=dict(os.environ),
            stop_timeout_s=STOP_TIMEOUT_S,
        )
        self._process.__enter__()
        if self._process.until(lambda: _lets_in(access), START_TIMEOUT_S):
            raise StoreUnavailable(
                f"The MariaDB of {self._home} did not start: see {self._process.log}."
            )

    def _noted_access(self) -> mariadb_access.Access:
        """Return the port and password of the last time; another port if that one is taken now."""
        former = mariadb_access.Access.of(self._home)
        password = former.password if former else SecretStr(secrets.token_urlsafe(24))
        access = mariadb_access.Access(_free_port(former.port if former else 0), password)
        noted = {"port": access.port, "password": password.get_secret_value()}
        replace_file(self._folder / mariadb_access.ACCESS_FILE, json.dumps(noted), mode=0o600)
        return access

    def _account_file(self, access: mariadb_access.Access) -> Path:
        """Write the statements that the server begins with, one a line; return the file."""
        account = f"'{mariadb_access.ACCOUNT}'@'{mariadb_access.LOOPBACK}'"
        lines = ["DROP USER IF EXISTS ''@'localhost';"]
        secret = access.password.get_secret_value()
        lines.append(f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{secret}';")
        for database in (mariadb_access.LEASES, mariadb_access.DAGSTER):
            lines += [
                f"CREATE DATABASE IF NOT EXISTS {database} "
                "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;",
                f"GRANT ALL ON {database}.* TO {account};",
            ]
        path = self._folder / "account.sql"
        replace_file(path, "\n".join(lines) + "\n", mode=0o600)
        return path


def _as_root() -> list[str]:
    # The server refuses to run as root unless it is told to.
    return ["--user=root"] if os.geteuid() == 0 else []


def _free_port(wanted: int) -> int:
    """Return the wanted port of the loopback, or a free one if that is taken."""
    for port in (wanted, 0):
        with suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((mariadb_access.LOOPBACK, port))
            return int(probe.getsockname()[1])
    raise StoreUnavailable(f"No port of {mariadb_access.LOOPBACK} is free for MariaDB.")


def _lets_in(access: mariadb_access.Access) -> bool:
    import pymysql

    try:
        pymysql.connect(
            host=mariadb_access.LOOPBACK,
            port=access.port,
            user=mariadb_access.ACCOUNT,
            password=access.password.get_secret_value(),
            database=mariadb_access.DAGSTER,
            connect_timeout=5,
        ).close()
    except pymysql.MySQLError:
        return False
    return True
