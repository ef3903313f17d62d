"""Hooks of mkdocs: the README is the site's first page, and links to source files leave the site.

Pages link to files of the tree by relative paths, which a clone and a code host can follow. On the
site such a link leads to the file in the repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the page `index.md`."""
    text = linked(README.read_text("utf-8"), README, DOCS, str(config.repo_url))
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, config: MkDocsConfig, **event: Any) -> str:
    """Point the links of a page where the site has their targets."""
    page = DOCS / event["page"].file.src_uri
    if not page.is_file():
        return markdown
    return linked(markdown, page, page.parent, str(config.repo_url))


def linked(text: str, page: Path, folder: Path, repository: str) -> str:
    """Return the text of `page` with links as they are for a page in `folder` of the site."""

    def link(match: re.Match[str]) -> str:
        before, target, fragment, after = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        file = (page.parent / target).resolve()
        if file == README:
            target = os.path.relpath(DOCS / "index.md", folder)
        elif file.is_relative_to(DOCS):
            target = os.path.relpath(file, folder)
        else:
            kind = "tree" if file.is_dir() else "blob"
            target = f"{repository}/{kind}/main/{file.relative_to(ROOT).as_posix()}"
        return f"{before}{target}{fragment or ''}{after}"

    return LINK.sub(link, text)
