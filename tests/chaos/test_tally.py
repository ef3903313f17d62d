"""Results of parts of a campaign are added up, and the sum shows how much is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.__main__ import left_to_play, random_wave
from tests.chaos.incidents import OF_THE_DATABASE
from tests.chaos.tally import Tally


def test_results_of_several_campaigns_are_added_up_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results" / "chaos.jsonl"
    assert Tally.read(path) == Tally()
    first = Tally(rounds=2, records=70)
    first.recovered_s["kill run"] += [2.0, 4.0]
    first.recovered_s["freeze code"].append(9.0)
    second = Tally({"kill run": [3.0], "reply lost after COMMIT": [1.0]}, ["kill code"], rounds=1)
    for part in (first, second):
        part.write(path)
    total = Tally.read(path)
    assert (total.count("kill"), total.count("freeze"), total.rounds) == (3, 1, 3)
    lines = total.table().splitlines()
    assert lines[2].split() == ["kill", "run", "3", "3.0", "4.0"]
    assert lines[4] == (
        "5 incidents (3 kills, 1 freezes) in 3 rounds, 70 records checked, 0 violations"
    )
    assert lines[5] == "not reached: kill code"
    monkeypatch.setenv("LEASEHOLD_CHAOS_KILLS", "10")
    monkeypatch.setenv("LEASEHOLD_CHAOS_FREEZES", "1")
    assert left_to_play(total) == {False: 7, True: 0}


def test_waves_follow_the_seed_and_the_counts() -> None:
    def waves(seed: int) -> list[list[str]]:
        dice, left, kinds = random.Random(seed), {False: 20, True: 20}, []
        while any(left.values()):
            wave = random_wave(dice, left, [])
            assert sum(isinstance(each, OF_THE_DATABASE) for each in wave) <= 1
            kinds.append([each.kind for each in wave])
        flat = [kind for wave in kinds for kind in wave]
        counts = [sum(kind.startswith(verb) for kind in flat) for verb in ("kill ", "freeze ")]
        assert counts == [20, 20]
        return kinds

    assert waves(1) == waves(1) != waves(2)
