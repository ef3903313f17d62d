"""Redis and ZooKeeper from Debian's packages, unpacked into a folder and run on the loopback.

Nothing is installed and no service is started: `apt-get download` brings the packages, `dpkg -x`
unpacks them, and the servers end with the benchmark.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

REDIS_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
ZOOKEEPER_PACKAGES = (
    "libzookeeper-java",
    "libslf4j-java",
    "libdropwizard-metrics-java",
    "libsnappy-java",
    "libnetty-java",
    "libcommons-io-java",
)
ZOOKEEPER_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-nop", "metrics-core")
ZOOKEEPER_JARS += ("snappy-java", "netty-all", "commons-io")
START_TIMEOUT_S = 60.0


class ServerMissing(Exception):
    """Raised where a server cannot be had on this machine; the message says why."""


def unpack(folder: Path, packages: tuple[str, ...]) -> Path:
    """Unpack some packages into a folder, and return it."""
    root, downloads = folder / "root", folder / "packages"
    if not shutil.which("apt-get"):
        raise ServerMissing("there is no apt-get here")
    downloads.mkdir(parents=True, exist_ok=True)
    outcome = subprocess.run(
        ["apt-get", "download", "-q", *packages],
        cwd=downloads,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if outcome.returncode:
        raise ServerMissing(f"apt-get cannot download it: {outcome.stderr.strip()[-200:]}")
    for package in sorted(downloads.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True, timeout=60)
        package.unlink()
    return root


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(
    command: list[str], folder: Path, port: int, environment: dict[str, str]
) -> Generator[int]:
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env={**os.environ, **environment}
        )
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise ServerMissing(f"it did not start: see {log.name}") from None
                    time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


@contextmanager
def redis_server(folder: Path) -> Generator[int]:
    """A Redis that keeps nothing on disk; yields its port."""
    root = unpack(folder, REDIS_PACKAGES)
    libraries = ":".join(str(path.parent) for path in root.glob("usr/lib/*/lib*.so.*"))
    port = _free_port()
    command = [str(root / "usr/bin/redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--save", "", "--appendonly", "no"]
    with _running(command, folder, port, {"LD_LIBRARY_PATH": libraries}) as ready:
        yield ready


@contextmanager
def zookeeper_server(folder: Path, *, tick_ms: int) -> Generator[int]:
    """A stand-alone ZooKeeper; yields its port. A session lasts at least two ticks."""
    if not shutil.which("java"):
        raise ServerMissing("there is no java on the path")
    root = unpack(folder, ZOOKEEPER_PACKAGES)
    port = _free_port()
    data = folder / "data"
    data.mkdir(exist_ok=True)
    (folder / "zoo.cfg").write_text(
        f"tickTime={tick_ms}\ndataDir={data}\nclientPort={port}\n"
        "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n",
        encoding="utf-8",
    )
    jars = ":".join(str(root / f"usr/share/java/{name}.jar") for name in ZOOKEEPER_JARS)
    command = ["java", "-Xmx128m", "-cp", jars]
    command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(folder / "zoo.cfg")]
    with _running(command, folder, port, {}) as ready:
        yield ready
