"""The source that `docs/how-to/own-source.md` shows, installed as a package of the user's is."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import ClassVar

from lease_store.identifiers import ShardId, StreamName
from shard_sources.registry import open_source, source_options
from shard_sources.source_kind import StreamPlace
from tests.sources.world import NewRecord, Notion, SourceWorld

PAGE = Path(__file__).parents[3] / "docs/how-to/own-source.md"
FILES = "it is files in a folder"


def install(folder: Path) -> None:
    """Lay the page's module and its entry point into a folder, as an installer does."""
    text = PAGE.read_text("utf-8")
    [module] = re.findall(r"^```python\n(# folder_source\.py\n.*?)^```$", text, re.M | re.S)
    [point] = re.findall(
        r"^```ini\n\[project\.entry-points\.\"(.*?)\"\]\n(.*?)^```$", text, re.M | re.S
    )
    (folder / "folder_source.py").write_text(module)
    described = folder / "folder_source-1.0.dist-info"
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: folder-source\nVersion: 1.0\n"
    )
    (described / "entry_points.txt").write_text(f"[{point[0]}]\n{point[1].replace(chr(34), '')}")


class OwnSourceWorld(SourceWorld):
    lacks: ClassVar[Mapping[Notion, str]] = {
        Notion.KEY: "a file has no key",
        Notion.ATTRIBUTES: "a file has no attributes",
        Notion.GIVEN_TIME: "the file system gives a file its time",
        Notion.TIME_SEEK: "the example leaves it out, and begins at the beginning",
        Notion.NO_VALUE: "a file is bytes, an empty one included",
        Notion.LINEAGE: "folders are added, never split",
        Notion.RETENTION: "files are kept whole",
        Notion.DAMAGE: FILES,
        Notion.NETWORK: FILES,
        Notion.THROTTLING: FILES,
        Notion.CREDENTIALS: FILES,
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        packages = folder / "packages"
        packages.mkdir()
        install(packages)
        sys.modules.pop("folder_source", None)
        sys.path.insert(0, str(packages))
        self._packages = str(packages)
        invalidate_caches()
        self.log = folder / "log"
        self.log.mkdir()
        for name in ("a", "b"):
            (self.log / name).mkdir()
        options = source_options("folder", {"folder": str(self.log)})
        self.source = open_source("folder", options, StreamPlace(StreamName("notes"), folder))
        assert type(self.source) is import_module("folder_source").FolderSource

    def close(self) -> None:
        sys.path.remove(self._packages)
        sys.modules.pop("folder_source", None)

    def put(self, shard: ShardId, records: Sequence[NewRecord]) -> None:
        stored = len(list((self.log / shard).iterdir()))
        for number, record in enumerate(records, stored):
            assert record.value is not None
            (self.log / shard / f"{number:06}").write_bytes(record.value)

    def grow(self) -> ShardId:
        (self.log / "c").mkdir()
        return ShardId("c")
