"""Values that Arrow tables and DataFrames must parse alike."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

JSON_SCHEMA = (
    "flag BOOLEAN, tiny TINYINT, small SMALLINT, n INT, big BIGINT, single FLOAT, double DOUBLE, "
    "text STRING, raw BINARY, price DECIMAL(5,2), wide DECIMAL(38,18), day DATE, at TIMESTAMP, "
    "bare TIMESTAMP_NTZ, numbers ARRAY<INT>, pair STRUCT<x: INT, y: STRING>, "
    "pairs ARRAY<STRUCT<x: DOUBLE>>"
)
MAP_SCHEMA = (
    "counts MAP<STRING, INT>, days ARRAY<DATE>, times MAP<STRING, ARRAY<TIMESTAMP>>, "
    "maps ARRAY<STRUCT<m: MAP<STRING, STRING>>>, at TIMESTAMP"
)
CSV_SCHEMA = (
    "flag BOOLEAN, tiny TINYINT, small SMALLINT, n INT, big BIGINT, single FLOAT, double DOUBLE, "
    "raw BINARY, price DECIMAL(5,2), day DATE, at TIMESTAMP, bare TIMESTAMP_NTZ, text STRING"
)
PAIR_SCHEMA = "a STRING, b STRING"

# Texts of single fields, as they stand in JSON.
_FIELDS = {
    "flag": 'true false "true" 1 null TRUE ""',
    "tiny": "127 128 255 256 -128 -129 1.0",
    "small": "32767 32768 -32768 -32769",
    "n": f'1 -1 0 -0 00 1.0 1e2 2147483647 2147483648 "1" "" true null [] {{}} {"9" * 30} NaN',
    "big": "9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 1e3",
    "single": '1 0.1 16777217 1e39 1.00000017881393432617187500000000000000001 "NaN" 1e-46 -0 -0.0',
    "double": (
        '1 1.5 1e400 1e-400 -0.0 -0 "1.5" "NaN" "-Infinity" "INF" "+INF" NaN -NaN Infinity -INF '
        f'+INF INF Inf "" 0.1 123456789012345678901234567890 true 9007199254740993 1E5 {"1" * 400}'
    ),
    "text": (
        r'"x" "" 1 1.0 1e5 1.50 -0 true null "\ud83d\ude00" "\ud83d" "\ude00\ud83d" "\u0000" '
        r'"\/\b\f\n\r\t\"" "naïve☃" NaN 1e400 12345678901234567890123 1e-7 0.001 1e7 "\x" "\u00e" '
        r'{"b":{},"c":[1,2.50,null,true]} [1,"x\u001f\n"] "NaN" "Inf,"'
    ),
    "raw": '"aGk=" "aGk" "YQ==" "aGkhaGkh" "%%" "" 1 null "-_-_" "aGk=aGk="',
    "price": (
        '1 1.5 1.005 1.015 -1.005 999.99 999.995 1000 12345 "1.5" "1,00" "" "x" 1e2 1e-2 "1." ".5" '
        '"+5" "5-" true 1e9999999999 1e-400 NaN "NaN" "1_0"'
    ),
    "wide": "1 12345678901234567890.123456789012345678 0.1234567890123456785 1e19 1e20",
    "day": (
        '"2024-01-02" "2024-1-2" "2024-01" "2024" "2024-01-02T25:00" "2024-02-30" "+2024-01-02" '
        '"-0001-01-01" "12024-01-02" "0000-01-01" "9999-12-31" "01/02/2024" 5 "5" "20240102" "" '
        'null "2024-01-02Z" "2024-01-02T" "1582-10-10" "2024-01GMT"'
    ),
    "at": (
        '"2024-01-02" "2024-01-02T03:04:05" "2024-01-02T03:04:05Z" "2024-01-02T03:04:05.123456Z" '
        '"2024-01-02T03:04:05.1234567Z" "2024-01-02T03:04:05+02:00" "2024-01-02T03:04:05+0200" '
        '"2024-01-02T03:04:05+2" "2024-01-02T03:04:05Europe/Berlin" "2024-01-02T03:04:05UTC+2" '
        '"2024-01-02T03:04" "2024-01-02T03:04Z" "2024-01-02T03Z" "2024-01-02T03" "2024-01-02T" '
        '"2024-1-2T3:4:5" "2024" 1704164645 1704164645.5 -1 "1704164645" "" "2024-02-30T00:00:00Z" '
        '"2024-01-02T24:00:00Z" "2024-01-02T23:59:60Z" "2024-01-02T03:04:05z" "x" null '
        '"2024-01-02T03:04:05.Z" "2024-01-02T03:04:05+18:00" "2024-01-02T03:04:05+18:01" '
        '"2024-01-02T03:04:05+02:00:30" "0001-01-01T00:00:00Z" "294247-01-10T04:00:54.775807Z" '
        '"294247-01-10T04:00:54.775808Z" 9223372036855 "2024-01-02T03:04:05PST" '
        '"2024-03-31T02:30:00Europe/Berlin" "2024-10-27T02:30:00Europe/Berlin" "2024-01-02GMT" '
        '"12024-07-01T00:00:00Europe/Berlin" "2024-01-02T03:04:05Mars/Base" 1704164645000 '
        "1704164645000000 1704164645000000000 -1704164645000 253402300799 253402300800 "
        "-62135596800 -62135596801 36893488147 18446744073709 9223372036854775807 "
        '"9999-12-31T23:59:59-00:01" "9999-12-31T23:59:59.999999Z" "0001-01-01T00:00:00+00:01" '
        '"0000-12-31T23:59:59Z" "1704164645000"'
    ),
    "bare": (
        '"2024-01-02" "2024-01-02T03:04:05.1234567" "2024-01-02T03:04:05Z" 1704164645 "" '
        '"2024-01-02T03:04:05+02:00" "9999-12-31T23:59:59.999999" "0000-12-31T23:59:59"'
    ),
    "numbers": '[1,2] [] [1,null] null 1 [1,"x"] {"0":1} [1,2 [[1]]',
    "pair": '{"x":1} {"x":1,"y":"s","z":3} {} {"x":"s"} null [] {"x":1,"x":2} {"y":5}',
    "pairs": '[{"x":1},null] [{}] [1] [{"x":-0.0},{"x":-0}] [{"x":"s"}]',
}
_WHOLE = [
    b"",
    b"  ",
    None,
    b"null",
    b"1",
    b'"x"',
    b'[{"n":1}]',
    b"{}",
    b'{"other":2}',
    b' {"n":1}',
    b'\n{"n":1}\n',
    b'{"n"\n:\n1}',
    b'{"n":1} x',
    b'{"n":1}{"n":2}',
    b'{"n":1}}',
    b'{"n":1',
    b', "n":2}',
    b'{"n":{}',
    b'{"text":"}',
    b'{","n":1}',
    b'{"n":1,"n":2}',
    b'{"n":"x","n":2}',
    b'{"n":1,"n":null}',
    b"{'n':1}",
    b"{'text':'it\\'s \"it\"'}",
    b'{"text":"it\\\'s"}',
    b"{n:1}",
    b'{"n":1,}',
    b'\xef\xbb\xbf{"n":1}',
    b'{"n":1}\x00',
    b'{"n":1}\xff',
    b'{"text":"\xed\xa0\x80"}',
    b'{"n":1,"o":tru}',
    b'{"n":1,"o":NaN}',
    b'{"n":1,"o":-NaN}',
    b'{"n":1,"o":01}',
    b'{"n":1,"o":"\t"}',
    b'{"n":1,"o":.5}',
    b'{"n":1,"o":1.}',
    b'{"N":1}',
    b'{"n":1/*c*/}',
    b'{"\\u006e":1}',
    b'{"n":1]',
    b'{"":1,"n":5}',
    b'{"n":1,"o":' + b"[" * 999 + b"]" * 999 + b"}",
    b'{"n":1,"o":' + b"[" * 1000 + b"]" * 1000 + b"}",
    b'{"n":1,"o":' + b"1" * 1000 + b"}",
    b'{"n":1,"o":' + b"1" * 1001 + b"}",
    b'{"n":1,"o":0.' + b"1" * 1001 + b"}",
    b'{"n":1,"o":"' + b"1" * 1001 + b'"}',
    b'{"n":1,"' + b"o" * 50_001 + b'":0}',
    b'{"n":1,"text":"' + b"x" * 60_000 + b'"}',
]
_WHOLE += [b'{"price":"%s1"}' % (b"0" * zeros) for zeros in (998, 999, 1000, 100_000)]
JSON_VALUES: list[bytes | None] = _WHOLE + [
    f'{{"{name}":{text}}}'.encode() for name, texts in _FIELDS.items() for text in texts.split(" ")
]
MAP_VALUES: list[bytes | None] = [
    b'{"counts":{"x":1,"x":2,"y":null}}',
    b'{"counts":{}}',
    b'{"counts":{"x":"s"}}',
    b'{"counts":[]}',
    b'{"days":["2024-01-02",null,"12024-01-02"]}',
    b'{"days":["x"]}',
    b'{"counts":{"\\ud800":1}}',
    b'{"counts":{"\\ud800":1,"\\ud801":2}}',
    b'{"times":{"x":[1,1704164645000]}}',
    b'{"times":{"x":[1,1704164645000000],"y":null}}',
    b'{"times":{"x":[1,null],"y":["2024-01-02"]}}',
    b'{"times":{"x":[1],"x":[2]}}',
    b'{"maps":[{"m":{"x":"1"}},{"m":{"x":"1","x":"2"}}]}',
    b'{"maps":[{"m":{"x":"1","y":"2"}},null,{"m":null}],"counts":{"1704164645000000":1}}',
    b'{"at":1,"counts":{"1704164645000000":1}}',
]
_CSV_FIELDS = {
    "flag": "true TRUE tRuE t 1",
    "tiny": "127 128 -128 +5",
    "small": "32767 32768",
    "n": "1 -1 +1 1.0 \u0661 0x1 2147483648 1_0 --1 - 00012 + 1e2 -0",
    "big": "9223372036854775807 9223372036854775808 1L",
    "single": "0.1 1e39 1.00000017881393432617187500000000000000001 NaN Inf 16777217 x",
    "double": (
        "1 1. .5 +.5 1e5 1E+5 1d 1f 0x1p3 NaN nan Inf -Inf +Inf Infinity inf 1e400 1e-400 . e5 1e "
        "\u0661 1_0 -0"
    ),
    "raw": "abc é",
    "price": '1 1.005 999.995 1e2 "1,00" +5 x 1. 1d 1_0 12345',
    "day": "2024-01-02 2024-1-2 2024 2024-01-02T03:04:05 20240102 x 5",
    "at": "2024-01-02 2024-01-02T03:04:05Z 2024-01-02T03:04:05.1234567+02:00 5 x 2024-01-02GMT",
    "bare": "2024-01-02T03:04:05 2024-01-02T03:04:05Z",
    "text": 'x "x" "a,b" "a""b" #x \\"x\\"',
}
_COLUMNS = list(_CSV_FIELDS)
CSV_VALUES: list[bytes | None] = [
    ("," * at + text + "," * (len(_COLUMNS) - at - 1)).encode()
    for at, name in enumerate(_COLUMNS)
    for text in _CSV_FIELDS[name].split(" ")
] + [b",,," + text + b",,,,,,,,," for text in (b" 1", b'" 1"', b"1 ", b'"1" ')]
_PAIRS = (
    'x,y|x,|,|"",""|"x",y|x,"y" |x, "y"|x,"y"z|x,"y""z"|x,y"z"|x,"y"z"|x,""y""|x,"""y"""|x\ny,b|'
    'x,y\n|x,y\r\n|x\r,y|"x\r\ny",z|\nx,y| x , y |x,y,|x|"x","y|x,"a,b"|"x"" y",z|"a"b,c|'
    '"a""b"c,d|"a" "b",c|"a" ,b|"a"\t,b|"a",b"|""x,y|x,"""|x,""""|x,"",|  |\n|x,y\n"|x,"y\n"|'
    'x,"y"\n|",\n"x,y"|a"b,"c|"a,b|"a,b"c","d|"a\n"b\n","d"|x,"y"",z|"x" y,"z w"|""" ",""|x","|'
    '"" a"",b|x,"" a""|\x00x,y|"x\x00",y|\ufeffx,y|x;y|,"x|, |naïve,☃'
)
_LONG: list[bytes | None] = (
    [b",,,,,,,," + b"0" * zeros + b"1,,,," for zeros in (998, 999, 1000, 100_000)]
    + [b'"' + b"," * commas + b'"' + b"," * 12 for commas in (19_988, 19_989, 30_000)]
    + [b"," * 50_000]
)
CSV_VALUES += _LONG
PAIR_VALUES: list[bytes | None] = [text.encode() for text in _PAIRS.split("|")] + [
    b"",
    None,
    b"\xff,x",
]
TAB_VALUES = [value and value.replace(b"\t", b" ").replace(b",", b"\t") for value in PAIR_VALUES]

# Schema, values, and the separator of CSV; None for JSON.
CASES: dict[str, tuple[str, list[bytes | None], str | None]] = {
    "fields of JSON": (JSON_SCHEMA, JSON_VALUES, None),
    "maps in JSON": (MAP_SCHEMA, MAP_VALUES, None),
    "fields of CSV": (CSV_SCHEMA, CSV_VALUES, ","),
    "quotes": (PAIR_SCHEMA, PAIR_VALUES, ","),
    "tabs": (PAIR_SCHEMA, TAB_VALUES, "\t"),
    "letters between": (
        PAIR_SCHEMA,
        [value and value.replace(b",", "é".encode()) for value in PAIR_VALUES],
        "é",
    ),
}


def table_of(values: list[bytes | None]) -> pa.Table:
    """Return values in a table, each with its number."""
    numbers = pa.array(range(len(values)), pa.int32())
    return pa.table({"number": numbers, "value": pa.array(values, pa.binary())})


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the fields and the error of each record, the fields of bad ones as nulls.

    Every number shows its sign and that it is none; dates and times are numbers, since Python's
    have fewer years.
    """
    columns = [_comparable(column) for column in table.drop_columns(["number", "value"]).columns]
    rows = list(zip(*columns, strict=True))
    return [row if row[-1] == "None" else (None,) * (len(row) - 1) + row[-1:] for row in rows]


def _comparable(column: pa.ChunkedArray) -> list[str]:
    kind = column.type
    if pa.types.is_list(kind) and pa.types.is_date(kind.value_type):
        column = column.cast(pa.list_(pa.int32()))
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.int32())
    return [repr(value) for value in column.to_pylist()]
