"""Evaluates a sensor as a code server does, with the resources of its definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from dagster._core.definitions.sensor_definition import SensorExecutionData


def tick(
    definitions: dg.Definitions,
    sensor: str,
    instance: dg.DagsterInstance,
    cursor: str | None = None,
) -> SensorExecutionData:
    """Return the run requests of a sensor's tick, and its new cursor."""
    repository = definitions.get_repository_def()
    with dg.build_sensor_context(
        instance,
        cursor,
        repository_def=repository,
        sensor_name=sensor,
        resources=definitions.resources,
    ) as context:
        return repository.get_sensor_def(sensor).evaluate_tick(context)
