"""Short soaks of one thing each: no finding as the code is, one in every mutant of it."""

from __future__ import annotations

import pytest

from tests.simulation.soak.mutants import MUTANTS, Mutant, shown
from tests.simulation.soak.scenes import SCENES

LONG_SCENES = {"hours fail", "a shard fails for ever"}
"""Scenes that take a minute each: releases play the mutants of these."""


@pytest.mark.long
@pytest.mark.parametrize("name", SCENES)
def test_a_scene_has_no_finding(name: str) -> None:
    assert SCENES[name].play() == []


@pytest.mark.long
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=mutant.name,
            marks=[pytest.mark.release] if mutant.scene in LONG_SCENES else [],
        )
        for mutant in MUTANTS
    ],
)
def test_the_soak_finds_each_mutant(mutant: Mutant) -> None:
    findings = mutant.findings()
    assert any(mutant.finding in finding for finding in findings), shown(findings)


def test_every_scene_has_a_mutant() -> None:
    assert {mutant.scene for mutant in MUTANTS} == set(SCENES)
