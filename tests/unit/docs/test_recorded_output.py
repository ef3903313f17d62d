"""The comparison of recorded output with the real output of commands."""

from __future__ import annotations

import pytest

from tests.unit.docs.recorded_output import RECORDED, assert_printed

PRINTED = RECORDED["node",][1].replace("4201", "20017")


@pytest.mark.parametrize("freed", ["0 shards", "1 shard", "1,200 shards"])
def test_recorded_output_can_differ_in_numbers(freed: str) -> None:
    assert_printed(("node",), PRINTED.replace("3 shards", freed))


def test_recorded_output_cannot_differ_in_words_and_their_order() -> None:
    for other in (PRINTED.replace("freed", "kept"), "\n".join(reversed(PRINTED.splitlines()))):
        with pytest.raises(AssertionError, match="did not print"):
            assert_printed(("node",), other)
