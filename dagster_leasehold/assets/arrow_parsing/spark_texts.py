"""Single texts read as Spark reads them: numbers, decimals, dates and moments.

Each function takes a text and raises ValueError or ArithmeticError where Spark finds no value in
it. Dates are days and moments microseconds since 1970, so that years beyond 9999 have a place.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from zoneinfo import ZoneInfo

import pyarrow as pa

from dagster_leasehold.assets.arrow_parsing.limits import DECIMAL_LETTERS_MAX

_BLANK = "".join(map(chr, [*range(33), 127]))
_TIME = r"(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(\D.*)?)?)?"
_MOMENT = re.compile(
    rf"([+-]?)(\d{{4,6}})(?:-(\d{{1,2}})(?:-(\d{{1,2}})(?:[ T]{_TIME})?)?)?", re.ASCII | re.DOTALL
)
_TIME_ALONE = re.compile(rf"(?:T(?=\d)|(?=\d{{1,2}}:)){_TIME}", re.ASCII | re.DOTALL)
_DATE = re.compile(
    r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL
)
_OFFSET = re.compile(
    r"([+-])(?:(\d{1,2})|(\d{2}):?(\d{2})|(\d{2}):(\d{2}):(\d{2})|(\d{2})(\d{2})(\d{2}))", re.ASCII
)
_INTEGER = re.compile(r"[+-]?\d+")
# Digits once taken are not given back, since trying each of them again would take quadratic time.
_DOUBLE = re.compile(
    r"([+-]?)(?:(NaN|Infinity)|((?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?)[fFdD]?"
    r"|(0[xX][0-9a-fA-F]*+(?:\.[0-9a-fA-F]*+)?[pP][+-]?\d++)[fFdD]?)",
    re.ASCII,
)
_DECIMAL = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE]([+-]?\d++))?")
_MICROS = 1_000_000
_INT64_MAX = 2**63 - 1
_OFFSET_MAX_S = 18 * 3600
_EXACT = Context(prec=4000, rounding=ROUND_HALF_UP)
_SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip


def days_of(text: str) -> int:
    """Return the days of a date; the time of day behind it may be anything."""
    parts = _DATE.fullmatch(text.strip(_BLANK)) or _DATE.fullmatch(_without_gmt(text))
    if parts is None:
        raise ValueError(text)
    return _days(parts[1], parts[2], parts[3], parts[4])


def micros_of(text: str) -> int:
    """Return the microseconds of a moment; in UTC where the text names no zone.

    A time without a date is today's, as in Spark.
    """
    try:
        return _micros(text)
    except ValueError:
        return _micros(text.replace("GMT", ""))


def local_micros_of(text: str) -> int:
    """Return the microseconds of a moment without a zone, as if it were in UTC."""
    parts = _MOMENT.fullmatch(text.strip(_BLANK))
    if parts is None or parts[9] is not None:
        raise ValueError(text)
    return in_range(_days(*parts.group(1, 2, 3, 4)) * 86_400 * _MICROS + _of_day(parts, 5))


def whole_number(text: str, bits: int) -> int:
    """Return an integer of so many bits."""
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    number = int(text)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(text)
    return number


def floating_number(text: str, *, single: bool = False) -> float:
    """Return a number as Java reads it: with spaces around it, a letter behind it, or in hex.

    A `single` one is rounded to 32 bits, once.
    """
    if text in ("Inf", "-Inf"):
        return float(text)
    parts = _DOUBLE.fullmatch(text.strip(_BLANK[:-1]))
    if parts is None:
        raise ValueError(text)
    sign, name, number, hexadecimal = parts.groups()
    if hexadecimal:
        value = float.fromhex(f"{sign}{hexadecimal}")
        return pa.scalar(value).cast(pa.float32()).as_py() if single else value
    if name:
        return float(f"{sign}{name}")
    return rounded_single(f"{sign}{number}") if single else float(f"{sign}{number}")


def rounded_single(text: str) -> float:
    """Return the number of 32 bits that is nearest to a decimal text."""
    try:
        return pa.scalar(text).cast(pa.float32()).as_py()
    except pa.ArrowInvalid:
        # Arrow takes no number with a plus, and none that is out of range.
        return pa.scalar(float(text)).cast(pa.float32()).as_py()


def decimal_number(text: str, precision: int, scale: int) -> Decimal:
    """Return a decimal rounded half up; commas in it do not count."""
    if len(text) > DECIMAL_LETTERS_MAX:
        raise ValueError("the decimal is too long")
    return fitted(text.replace(",", ""), precision, scale)


def fitted(text: str, precision: int, scale: int) -> Decimal:
    """Return a decimal rounded half up to a scale, if the precision allows."""
    parts = _DECIMAL.fullmatch(text)
    if parts is None or abs(int(parts[1] or 0)) > 2**31 - 1:
        raise ValueError(text)
    number = Decimal(text).quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if len(number.as_tuple().digits) > precision:
        raise ValueError(text)
    return number


def boolean(text: str) -> bool:
    """Return true or false, in letters of any case."""
    lower = text.lower()
    if lower not in ("true", "false"):
        raise ValueError(text)
    return lower == "true"


def _without_gmt(text: str) -> str:
    return text.replace("GMT", "").strip(_BLANK)


def _days(sign: str, year: str, month: str | None, day: str | None) -> int:
    # The calendar repeats every 400 years, and Python's ends with the year 9999.
    number = -int(year) if sign == "-" else int(year)
    inside = date(2000 + number % 400, int(month or 1), int(day or 1))
    return inside.toordinal() - 719_163 + (number - inside.year) // 400 * 146_097


def _of_day(parts: re.Match[str], first: int) -> int:
    """Return the microseconds of a day out of the groups of `_TIME`."""
    hour, minute, second = (int(parts[first + n] or 0) for n in range(3))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(parts[0])
    fraction = (parts[first + 3] or "")[:6].ljust(6, "0")
    return (hour * 3600 + minute * 60 + second) * _MICROS + int(fraction)


def _micros(text: str) -> int:
    trimmed = text.strip(_BLANK)
    if parts := _MOMENT.fullmatch(trimmed):
        zone = _zone(parts[9].strip(_BLANK[:-1])) if parts[9] else UTC
        days, within = _days(*parts.group(1, 2, 3, 4)), _of_day(parts, 5)
    # A T in front of a time must be the first of all letters.
    elif (parts := _TIME_ALONE.fullmatch(trimmed)) and not (trimmed[0] == "T" != text[0]):
        zone = _zone(parts[5].strip(_BLANK[:-1])) if parts[5] else UTC
        days, within = datetime.now(zone).date().toordinal() - 719_163, _of_day(parts, 1)
    else:
        raise ValueError(text)
    seconds = days * 86_400 + within // _MICROS
    return in_range((seconds - _offset_s(zone, seconds)) * _MICROS + within % _MICROS)


def in_range(micros: int) -> int:
    """Return microseconds that Arrow can hold."""
    if not -_INT64_MAX - 1 <= micros <= _INT64_MAX:
        raise ValueError(f"{micros} microseconds are out of range")
    return micros


def _offset_s(zone: tzinfo, local_s: int) -> int:
    """Return a zone's distance from UTC at a local time, in seconds.

    In the hour that a zone skips it is the one before, in the hour that it repeats the first.
    """
    if zone is UTC:
        return 0
    # Zones repeat with the calendar once they have settled, and knew no rules before the year 1.
    cycle = 146_097 * 86_400
    last = (date(9999, 12, 1).toordinal() - 719_163) * 86_400
    inside = local_s if local_s < last else last - cycle + (local_s - last) % cycle
    local = datetime(1970, 1, 1) + timedelta(seconds=max(inside, -62_135_000_000))  # noqa: DTZ001
    offset = zone.utcoffset(local)
    return 0 if offset is None else round(offset.total_seconds())


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    """Return the zone of an offset, a region, or one of Java's short names."""
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", name, count=1, flags=re.ASCII)
    name = re.sub(r"([+-]\d\d):(\d)$", r"\1:0\2", name, flags=re.ASCII)
    name = _SHORT_ZONES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    for prefix in ("UTC", "GMT", "UT"):
        if name[len(prefix) : len(prefix) + 1] in ("+", "-") and name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    if name[:1] in ("+", "-"):
        return _fixed_zone(name)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9~/._+-]+", name):
        raise ValueError(name)
    try:
        return ZoneInfo(name)
    except (KeyError, OSError) as error:
        raise ValueError(name) from error


def _fixed_zone(text: str) -> tzinfo:
    parts = _OFFSET.fullmatch(text)
    if parts is None:
        raise ValueError(text)
    hours, minutes, seconds = ([int(each) for each in parts.groups()[1:] if each] + [0, 0])[:3]
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _OFFSET_MAX_S:
        raise ValueError(text)
    return timezone(timedelta(seconds=-total if parts[1] == "-" else total))
