"""Pages of a shard from a position on, in order, without silently skipping a record.

The service reports some losses only indirectly:

1. Retention removes the record of a cursor. For a request at it, the service returns the oldest
   record that is left, as if there had been none in between.
2. So the page for a position at a record must begin with that record, or the cursor has expired.
3. A position after a record is certain for the retention period, counted from the second in the
   cursor, because all later records are still kept. The records after it are requested.
4. After that period it is certain only while its record exists. The record itself is requested,
   and omitted from the page.
5. If a reader pauses for that long between two pages, rules 3 and 4 apply again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.errors import CursorExpired, CursorInvalid, LogNotFound, shown
from dagster_leasehold.shard_sources.kinesis.cursors import Place, Side, after
from dagster_leasehold.shard_sources.kinesis.pace import Pace
from dagster_leasehold.shard_sources.kinesis.service import (
    IteratorExpired,
    KinesisService,
    NumberRefused,
    service_time,
)

RECORDS_PER_CALL_MAX = 10_000
VISIBLE_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as the service stores it; it can contain many of a producer's records.

    Attributes:
        number: its sequence number.
        arrived: the approximate time when the service received it.
    """

    number: int
    arrived: datetime
    partition_key: str
    data: bytes
    encryption: str = ""

    @property
    def next_place(self) -> Place:
        """The position after it."""
        return after(self.number, int(self.arrived.timestamp()))


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to one read of a shard.

    Attributes:
        records: the records in order; an empty page can be followed by others.
        at_tip: True if no record followed the page when it was read.
        closed: True if the shard is read-only and ends here.
        moment: the service's time of the answer, if the answer has it.
        lag_s: the seconds from the end of the page to that time.
    """

    records: list[StoredRecord]
    at_tip: bool
    closed: bool
    moment: datetime | None
    lag_s: float = 0.0

    @property
    def end(self) -> Place | None:
        """The position after the last record; None for an empty page."""
        return self.records[-1].next_place if self.records else None

    @property
    def searched_s(self) -> int:
        """The second up to which an empty page proves that there is no record; 0 if unknown.

        It is earlier than the service's time, because a new record becomes visible with a delay.
        """
        if self.moment is None or self.records:
            return 0
        return int(max(0.0, self.moment.timestamp() - self.lag_s - VISIBLE_AFTER_S))


@dataclass
class _Position:
    """The next iterator and its position, from which it can be requested again.

    With `needs_record`, the next page must begin with the record of the position.
    """

    place: Place
    iterator: str = ""
    needs_record: bool = False


class ShardPages:
    """Pages of the shards of one stream; `retention_s` returns its retention period."""

    def __init__(
        self, service: KinesisService, pace: Pace, retention_s: Callable[[], float]
    ) -> None:
        self._service = service
        self._pace = pace
        self._retention_s = retention_s

    def service_now(self, shard: str) -> datetime | None:
        """Return the service's time, if its answers have it."""
        return self._iterator(shard, ShardIteratorType="LATEST")[1]

    def oldest(self, shard: str, *, limit: int = RECORDS_PER_CALL_MAX) -> Iterator[Page]:
        """Yield pages from the oldest record on, with at most `limit` records each."""
        iterator, _ = self._iterator(shard, ShardIteratorType="TRIM_HORIZON")
        return self._pages(shard, iterator, limit)

    def since(self, shard: str, time: datetime) -> Iterator[Page]:
        """Yield pages from a past time on, which the service can round down."""
        arguments = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": time}
        return self._pages(shard, self._iterator(shard, **arguments)[0])

    def from_place(
        self, shard: str, place: Place, *, limit: int = RECORDS_PER_CALL_MAX
    ) -> Iterator[Page]:
        """Yield pages from a position on, with at most `limit` records each.

        Raises:
            CursorExpired: records after the position are possibly removed.
            CursorInvalid, LogNotFound: the record or the shard does not exist.
        """
        if place.side is Side.GONE:
            yield Page([], True, True, None)
            return
        position = self._begin(shard, place)
        while True:
            try:
                answer, next_iterator = self._read(shard, position.iterator, limit)
            except IteratorExpired:
                position = self._begin(shard, position.place)
                continue
            page = answer
            if position.needs_record:
                page = self._after_record(shard, position, answer)
                if page is None:
                    position.iterator = next_iterator
                    continue
            elif answer.moment is not None and not self._sure(position.place, answer.moment):
                # The machine slept, or reading takes longer than retention: start over by rule 4.
                position = self._begin(shard, position.place)
                continue
            yield page
            if page.closed:
                return
            place = page.end or position.place
            position = _Position(place.renewed(page.searched_s), next_iterator)

    def _begin(self, shard: str, place: Place) -> _Position:
        number = str(place.number)
        match place.side:
            case Side.START:
                iterator, moment = self._iterator(shard, ShardIteratorType="TRIM_HORIZON")
                if moment is None or not self._sure(place, moment):
                    raise self._expired(shard, place)
                return _Position(place, iterator)
            case Side.AFTER:
                iterator, moment = self._iterator(
                    shard, ShardIteratorType="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number
                )
                if moment is not None and self._sure(place, moment):
                    return _Position(place, iterator)
            case _:
                pass
        iterator, _ = self._iterator(
            shard, ShardIteratorType="AT_SEQUENCE_NUMBER", StartingSequenceNumber=number
        )
        return _Position(place, iterator, needs_record=True)

    def _after_record(self, shard: str, position: _Position, page: Page) -> Page | None:
        """Return the page without the position's record; None if that has not arrived yet."""
        place = position.place
        if not page.records:
            if page.at_tip or page.closed:
                raise self._expired(shard, place)
            return None
        if page.records[0].number != place.number:
            raise self._expired(shard, place)
        records = page.records[1:] if place.side is Side.AFTER else page.records
        at_tip = page.at_tip and bool(records)
        return replace(page, records=records, at_tip=at_tip, lag_s=float("inf"))

    def _sure(self, place: Place, moment: datetime) -> bool:
        """Return True if no record after a position can have been removed."""
        return place.side is Side.AT or moment.timestamp() - place.sure_s < self._retention_s()

    def _expired(self, shard: str, place: Place) -> CursorExpired:
        return CursorExpired(
            f"Records of shard {shown(shard)} of {self._service} after the cursor {place} are "
            "possibly removed: the cursor is older than the stream's retention."
        )

    def _pages(
        self, shard: str, iterator: str, limit: int = RECORDS_PER_CALL_MAX
    ) -> Iterator[Page]:
        """Yield pages from an iterator, which must not have expired."""
        while True:
            page, iterator = self._read(shard, iterator, limit)
            yield page
            if page.closed:
                return

    def _read(self, shard: str, iterator: str, limit: int) -> tuple[Page, str]:
        with self._pace.turn(shard) as charge:
            answer = self._service.call(
                "get_records", ShardIterator=iterator, Limit=min(limit, RECORDS_PER_CALL_MAX)
            )
            records = [_record(entry) for entry in answer["Records"]]
            charge(sum(len(record.data) + len(record.partition_key) for record in records))
        next_iterator = answer.get("NextShardIterator") or ""
        lag_ms = answer.get("MillisBehindLatest") or 0
        moment = service_time(answer)
        return Page(records, lag_ms == 0, not next_iterator, moment, lag_ms / 1000), next_iterator

    def _iterator(self, shard: str, **arguments: Any) -> tuple[str, datetime | None]:
        try:
            answer = self._service.call("get_shard_iterator", ShardId=shard, **arguments)
        except NumberRefused as error:
            raise CursorInvalid(
                f"{shown(arguments.get('StartingSequenceNumber'))} is not a sequence number of "
                f"shard {shown(shard)}: {error}"
            ) from None
        except LogNotFound as error:
            raise LogNotFound(f"There is no shard {shown(shard)}: {error}") from None
        return answer["ShardIterator"], service_time(answer)


def _record(entry: dict[str, Any]) -> StoredRecord:
    return StoredRecord(
        number=int(entry["SequenceNumber"]),
        arrived=entry["ApproximateArrivalTimestamp"],
        partition_key=entry["PartitionKey"],
        data=entry["Data"],
        encryption=entry.get("EncryptionType") or "",
    )
