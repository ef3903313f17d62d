"""Output in Google's and Azure's stores, with emulators on the loopback.

Written, committed, published, read, merged and vacuumed by one process without Spark. The clients
are those of the product, with the address and login of the emulators.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.table.comparison import Comparison
from dagster_leasehold.assets.places import store_place
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.assets.table_settings import TableSettings
from tests.hive_metastore import wait_for_port
from tests.kinesis_servers import ServerMissing, node_command, npm_folder
from tests.own_environments import PackagesMissing, own_environment
from tests.ports import free_port
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.publishing_world import Publishing

pytestmark = pytest.mark.long

GCS = ("gcp-storage-emulator==2026.7.19",)
AZURITE = "azurite@3.37.0"
# Everybody's: Azurite knows no other.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def google(port: int) -> tuple[list[str], fs.FileSystem, str]:
    program = own_environment("gcp-storage-emulator", GCS) / "gcp-storage-emulator"
    command = [str(program), "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
    system = fs.GcsFileSystem(
        anonymous=True,
        scheme="http",
        endpoint_override=f"127.0.0.1:{port}",
        project_id="project",
        retry_time_limit=timedelta(seconds=20),
    )
    return command, system, "gs://bucket-one/out"


def azure(port: int) -> tuple[list[str], fs.FileSystem, str]:
    script = npm_folder(AZURITE) / "node_modules/azurite/dist/src/blob/main.js"
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    command = [*node_command("node"), str(script), *options, "--blobPort", str(port)]
    address: dict[str, Any] = {
        f"{kind}_storage_{part}": value
        for kind in ("blob", "dfs")
        for part, value in (("authority", f"127.0.0.1:{port}"), ("scheme", "http"))
    }
    system = fs.AzureFileSystem(ACCOUNT, account_key=KEY, **address)
    return command, system, f"abfss://bucket-one@{ACCOUNT}.dfs.core.windows.net/out"


@pytest.fixture(params=[google, azure], ids=["google", "azure"])
def publishing(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Publishing]:
    port = free_port()
    try:
        command, system, address = request.param(port)
    except (PackagesMissing, ServerMissing) as error:
        pytest.skip(f"The emulator is not here: {error}")
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for_port(server, port, tmp_path / "server.log")
        system.create_dir("bucket-one")
        monkeypatch.setattr(store_place, "own_client", lambda *_: system)
        world = World(tmp_path, elsewhere=output_place(address))
        yield Publishing(tmp_path, TableSettings(snapshots_kept=1), world=world)
    finally:
        server.kill()
        server.wait()


def test_output_is_written_published_read_and_removed(publishing: Publishing) -> None:
    world = publishing.world
    world.consume()
    assert str(publishing.publish()) == "Published 6 batches of 20 records."
    assert publishing.publisher().comparison.compare() == Comparison(6, ())
    compactor = Compactor(
        store=world.store, key=world.key, output_root=world.place, run="compact-1"
    )
    reports = compactor.compact(world.ids)
    assert {report.error for report in reports.values()} == {""}
    for number in range(2):
        world.append(world.ids[0], 1)
        world.consume(f"run-{number}")
        publishing.publish()
    assert publishing.publisher().comparison.compare() == Comparison(4, ())

    expected = [*world.expected("0", 12), *world.expected("1", 10)]
    table = CommittedOutput(world.store, world.key, str(world.place)).dataset().to_table()
    assert sorted(table.column("value").to_pylist()) == sorted(expected)
    assert publishing.committed() == sorted(expected)

    # Azure's times are whole seconds: files of this second have to be removed as well.
    report = vacuum(world.store, world.key, world.place, older_than=timedelta(seconds=-1))
    assert len(report.removed) == 6, "what was merged"
    left = {entry.path for entry in world.place.entries("attempts") if not entry.folder}
    assert left == {file.path for b in world.store.each_batch(world.key) for file in b.files}
    assert publishing.committed() == sorted(expected)
