"""The cases of the throughput benchmark, and the ratios of its measurements."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures.parquet_input import LINES, PARQUET, make_input, rows_in
from benchmarks.figures.parquet_ways import NATIVE, OURS, OURS_FRAME
from benchmarks.figures.throughput_cases import OTHERS, Case, Figures, cases, targets


def test_each_ratio_compares_measured_cases():
    measured = set(cases((1, 16, 128), (1, 2), OTHERS))
    for target in targets((1, 16, 128), (1, 2)):
        assert {target.case, target.to} <= measured


def test_a_smaller_benchmark_has_the_same_cases():
    assert {case.way for case in cases((4,), (1,), OTHERS)} == {
        case.way for case in cases((1, 16), (1, 2), OTHERS)
    }
    assert all(case.shards == 4 and case.cores == 1 for case in cases((4,), (1,), OTHERS))


def test_ratios_use_medians_and_separate_measurements():
    figures = Figures(records={16: 1000}, size={16: 190_000})
    figures.measured[Case(OURS, 16, 2)] = [(9.0, 10.0), (1.0, 30.0), (2.0, 20.0)]
    figures.measured[Case(NATIVE, 16, 2)] = [(3.0, 1.0)]
    (ratio,) = figures.ratios(targets((1, 16), (1, 2)))
    assert (ratio["ratio"], ratio["reached"]) == (1.5, "yes")
    ours, native = figures.rows()
    assert (ours["seconds"], ours["rounds"], ours["memory MiB"]) == (2.0, 3, 30)
    assert (ours["to parquet"], native["to parquet"]) == (1.5, 1.0)
    assert OURS_FRAME not in {row["way"] for row in figures.rows()}


def test_each_format_has_the_same_records(tmp_path: Path):
    size = make_input(tmp_path, 100, 2)
    lines = [line for file in (tmp_path / LINES).iterdir() for line in file.open("rb")]
    assert (len(lines), rows_in(tmp_path / PARQUET)) == (100, 100)
    assert sum(map(len, lines)) == size + 100


def test_unused_formats_are_not_written(tmp_path: Path):
    size = make_input(tmp_path / "with", 100, 2)
    assert make_input(tmp_path / "without", 100, 2, lines=False) == size
    assert not any((tmp_path / "without" / LINES).iterdir())
