"""The README's first screen."""

from __future__ import annotations

import re

from tests.unit.docs.test_docs import ROOT


def test_the_first_screen_is_short() -> None:
    """Goal: a picture, the install line and about 15 lines of Python before the first heading."""
    text = (ROOT / "README.md").read_text("utf-8")
    screen = text[: text.index("\n## ")]
    assert re.search(r"!\[[^\]]+\]\(docs/images/[\w-]+\.svg\)", screen)
    assert "$ python -m pip install dagster-leasehold\n" in screen
    [code] = re.findall(r"^```python\n(.*?)^```$", screen, re.M | re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
