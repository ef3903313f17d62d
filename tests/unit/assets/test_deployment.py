from __future__ import annotations

import dagster as dg
import pytest

from dagster_leasehold.assets import deployment
from dagster_leasehold.assets.deployment import ensure_instance_address, instance_address


def test_concurrent_code_locations_agree_on_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: another process makes an address after this one has found none."""
    others: list[str] = []

    def overtaken(instance: dg.DagsterInstance) -> str:
        address = instance_address(instance)
        monkeypatch.undo()
        others.append(ensure_instance_address(instance))
        return address

    monkeypatch.setattr(deployment, "instance_address", overtaken)
    with dg.DagsterInstance.ephemeral() as instance:
        own = ensure_instance_address(instance)
        assert [own] == others
        assert instance_address(instance) == own, "the next process finds it"
