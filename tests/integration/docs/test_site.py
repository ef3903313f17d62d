"""The documentation site: built strictly, with the reference that its docstrings make."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.site_links import linked
from tests.unit.test_front_door import NAMES
from tests.unit.test_layout import ROOT

REPOSITORY = "https://example.test/log"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    folders = {page.parent if page.stem == "README" else page.with_suffix("") for page in pages}
    missing = [str(each) for each in folders if not (site / each / "index.html").is_file()]
    assert missing == []
    assert "sharded logs" in (site / "index.html").read_text("utf-8")


def test_the_reference_contains_each_name_with_its_docstring(site: Path) -> None:
    html = (site / "reference/python/index.html").read_text("utf-8")
    headings = set(re.findall(r'<h\d id="(dagster_leasehold\.[\w.]+)"', html))
    assert headings >= {f"{door}.{name}" for door, name in NAMES}
    assert "A stream to consume: one Dagster asset with one partition per shard." in html
    assert "def _" not in html


def test_links_to_files_outside_the_pages_lead_to_the_repository() -> None:
    page = ROOT / "docs/how-to/kafka.md"

    def link(target: str, folder: Path = page.parent) -> str:
        [shown] = re.findall(r"\((.*)\)", linked(f"[x]({target})", page, folder, REPOSITORY))
        return shown

    assert (
        link("../../dagster_leasehold/assets/parsing.py")
        == f"{REPOSITORY}/blob/main/dagster_leasehold/assets/parsing.py"
    )
    assert link("../../examples") == f"{REPOSITORY}/tree/main/examples"
    assert link("operations.md#backups") == "operations.md#backups"
    assert link("../../README.md") == "../index.md"
    assert link("https://kafka.apache.org/") == "https://kafka.apache.org/"
    assert link("#install") == "#install"
    readme = linked("[x](docs/quick-start.md)", ROOT / "README.md", ROOT / "docs", REPOSITORY)
    assert readme == "[x](quick-start.md)"
