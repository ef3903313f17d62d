"""A real headless Chromium for the tests of the user interface."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.dagster_deployment import DagsterDeployment

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium_page(folder: Path) -> Generator[Page]:
    """A page of a browser; its last content is printed, so that a failing test shows it."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.fail("Chromium is not installed: install the package chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=list(CHROMIUM_ARGUMENTS), headless=True
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        yield page
        page.screenshot(path=folder / "page.png")
        shown = page.locator("body").inner_text()[:3000]
        print(f"{folder / 'page.png'}: {page.url}\n{shown}")  # noqa: T201
        browser.close()


def choose_partitions(page: Page, stream: str, shards: Sequence[str]) -> None:
    """Tick partitions in the dialog that materializes an asset; it has no input for a range."""
    page.get_by_text("Select a partition or create one").click()
    for shard in shards:
        page.locator("[role=menu]").get_by_text(shard, exact=True).first.click()
    page.get_by_text(f"Launch runs to materialize {stream}").click()


def add_config(page: Page, config: str) -> None:
    """Give the runs of a backfill a config, in the same dialog."""
    page.get_by_text("Config", exact=True).click()
    page.get_by_text("Add config").first.click()
    page.locator(".CodeMirror").click()
    page.keyboard.insert_text(config)
    page.get_by_text("No errors").wait_for()
    page.get_by_role("button", name="Save config").click()


def no_run_works(deployment: DagsterDeployment) -> bool:
    """Return True if no run is queued or under way."""
    query = """{ runsOrError(filter: {statuses: [QUEUED, NOT_STARTED, STARTING, STARTED]}) {
        ... on Runs { results { id } } } }"""
    return not deployment.graphql(query)["runsOrError"]["results"]
