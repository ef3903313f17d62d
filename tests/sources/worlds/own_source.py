"""The source in `docs/how-to/own-source.md`, installed as a user installs it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import ClassVar

from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.registry import StreamPlace, open_source
from tests.sources.world import NewRecord, Notion, SourceWorld

PAGE = Path(__file__).parents[3] / "docs/how-to/own-source.md"
FILES = "it is files in a folder"


def install(folder: Path, scratch: Path) -> None:
    """Build the package of the page, and install it into a folder with pip."""
    text = PAGE.read_text("utf-8")
    package = scratch / "package"
    package.mkdir()
    for language, name in (("python", "folder_source.py"), ("toml", "pyproject.toml")):
        [block] = re.findall(rf"^```{language}\n(# {name}\n.*?)^```$", text, re.M | re.S)
        (package / name).write_text(block, "utf-8")
    # No index is used: the build's requirement and Leasehold are installed here.
    offline = ("--no-index", "--no-build-isolation", "--no-deps", "--quiet")
    pip = [sys.executable, "-m", "pip", "install", *offline, "--target", folder, package]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    invalidate_caches()


class OwnSourceWorld(SourceWorld):
    lacks: ClassVar[Mapping[Notion, str]] = {
        Notion.KEY: "a file has no key",
        Notion.ATTRIBUTES: "a file has no attributes",
        Notion.GIVEN_TIME: "the file system gives a file its time",
        Notion.TIME_SEEK: "the example leaves it out, and begins at the beginning",
        Notion.TIMED: "the example leaves it out",
        Notion.NO_VALUE: "a file is bytes, an empty one included",
        Notion.LINEAGE: "folders are added, never split",
        Notion.REMOVAL: "files are kept whole, and so are folders",
        Notion.RETENTION: "files are kept whole",
        Notion.DAMAGE: FILES,
        Notion.NETWORK: FILES,
        Notion.THROTTLING: FILES,
        Notion.CREDENTIALS: FILES,
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log = folder / "log"
        self.log.mkdir()
        for name in ("a", "b"):
            (self.log / name).mkdir()
        options = {"folder": str(self.log)}
        self.source = open_source("folder", options, StreamPlace(StreamName("notes"), folder))
        assert type(self.source) is import_module("folder_source").FolderSource

    def put(self, shard: ShardId, records: Sequence[NewRecord]) -> None:
        stored = len(list((self.log / shard).iterdir()))
        for number, record in enumerate(records, stored):
            assert record.value is not None
            (self.log / shard / f"{number:06}").write_bytes(record.value)

    def grow(self) -> ShardId:
        (self.log / "c").mkdir()
        return ShardId("c")
