"""Records packed as the Kinesis Producer Library packs them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dagster_leasehold.shard_sources.kinesis.user_records import MAGIC, Part, message_class


def pack(parts: Sequence[Part]) -> bytes:
    """One record's data that holds all of these."""
    message = message_class()()
    for part in parts:
        record = message.records.add(data=part.data)
        record.partition_key_index = _index(message.partition_key_table, part.partition_key)
        if part.explicit_hash_key is not None:
            record.explicit_hash_key_index = _index(
                message.explicit_hash_key_table, part.explicit_hash_key
            )
        for key, value in part.tags.items():
            record.tags.add(key=key, value=value)
    body = message.SerializeToString()
    return MAGIC + body + hashlib.md5(body).digest()


def _index(table: list[str], key: str) -> int:
    if key not in table:
        table.append(key)
    return list(table).index(key)
