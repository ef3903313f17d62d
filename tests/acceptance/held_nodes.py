"""A transform that a test can hold in the middle of the Spark jobs of one node.

Below the folder that `LEASEHOLD_TEST_HOLDS` names, each node has a folder: see `held_stream` for
the files in it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.acceptance.held_stream import HoldingTransform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLDER_VARIABLE = "LEASEHOLD_TEST_HOLDS"


def hold(records: DataFrame) -> DataFrame:
    """Pass all records on, and wait while the folder of the run's node has a file `hold`."""
    node = os.environ["LEASEHOLD_AGENT_NODE"]
    return HoldingTransform(Path(os.environ[FOLDER_VARIABLE]) / node)(records)
