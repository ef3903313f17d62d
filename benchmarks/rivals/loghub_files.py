"""A consumer of the LogHub SDK that writes files: its `ConsumerWorker` with a processor.

`python -m benchmarks.rivals.loghub_files ENDPOINT FOLDER WORKER INTERVAL_S TIMEOUT_S` runs until it
is killed. The checkpoint is stored after each file is on the disk: at least once. (The SDK's own
helper would store it every three seconds.)
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.rivals.log_feed import LOGSTORE, PROJECT
from benchmarks.rivals.output_files import write_durably

KEY, SECRET = "LTAItest", "secret-of-test"


def main() -> None:
    """Consume."""
    from aliyun.log.consumer import (
        ConsumerProcessorBase,
        ConsumerWorker,
        CursorPosition,
        LogHubConfig,
    )
    from aliyun.log.util import Util

    endpoint, folder, worker, interval_s, timeout_s = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    # The SDK does not see an address beside a port, and would put the project's name before it.
    Util.is_row_ip = lambda _: True

    class Files(ConsumerProcessorBase):
        def process(self, log_groups: Any, check_point_tracker: Any) -> None:
            values = [
                content.Value.encode() if isinstance(content.Value, str) else content.Value
                for group in log_groups.LogGroups
                for log in group.Logs
                for content in log.Contents
            ]
            write_durably(Path(folder), worker, values)
            self.save_checkpoint(check_point_tracker, force=True)

    config = LogHubConfig(
        endpoint,
        KEY,
        SECRET,
        PROJECT,
        LOGSTORE,
        "files",
        f"files-{os.getpid()}",
        cursor_position=CursorPosition.BEGIN_CURSOR,
        # The service forgets a consumer after two of these.
        heartbeat_interval=float(timeout_s) / 2,
        data_fetch_interval=float(interval_s),
    )
    ConsumerWorker(Files, config).start(join=True)


if __name__ == "__main__":
    main()
