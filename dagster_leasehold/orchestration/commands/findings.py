"""The findings of `leasehold doctor`: the health of each part, and remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from dagster_leasehold.lease_store.rules.failing_steps import sentence_of


class Health(StrEnum):
    """The health of one part."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check.

    Attributes:
        text: the result, and a remedy unless the part is ok.
    """

    part: str
    health: Health
    text: str


Check = Callable[[], Iterator[Finding]]


def findings_of(part: str, check: Check) -> list[Finding]:
    """Return the findings of a check; an exception ends the check and becomes a finding."""
    findings: list[Finding] = []
    try:
        findings += check()
    except Exception as error:
        findings.append(Finding(part, Health.FAILED, sentence_of(error)))
    return findings
