"""Errors of a Spark that lacks a feature, distinguished from errors of the user's plan and code."""

from __future__ import annotations

import pytest
from pyspark.errors import (  # noqa: TID253
    AnalysisException,
    PySparkAttributeError,
    PySparkNotImplementedError,
    UnsupportedOperationException,
)

from dagster_leasehold.assets.spark.missing_features import is_plan_error, lacks_feature


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedOperationException("handle add artifacts"),
        AnalysisException("Schema error: Unsupported type in DDL schema: Map { }."),
        AnalysisException("[UNSUPPORTED_FEATURE.PYTHON_DATA_SOURCE] no"),
        AnalysisException("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: orders."),
        AnalysisException("[CONNECT_INVALID_PLAN.INVALID_ONE_OF_FIELD] It is not supported."),
        RuntimeError("StatusCode.UNIMPLEMENTED: RegisterDataSource"),
        RuntimeError("Feature: Input is not yet implemented"),
        PySparkNotImplementedError("[NOT_IMPLEMENTED] dataSource() is not implemented."),
        PySparkAttributeError("[ATTRIBUTE_NOT_SUPPORTED] Attribute `dataSource`."),
        AttributeError("'SparkSession' object has no attribute 'dataSource'"),
    ],
)
def test_missing_features_of_spark_are_recognized(error: Exception) -> None:
    assert lacks_feature(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[UNRESOLVED_COLUMN] nope"),
        RuntimeError("Traceback (most recent call last):\n  x\nNotImplementedError: not supported"),
        UnsupportedOperationException("Traceback (most recent call last):\n  x\nKeyError: 'a'"),
        RuntimeError("failed to connect to all addresses"),
    ],
)
def test_errors_of_the_user_are_not_missing_features(error: Exception) -> None:
    assert not lacks_feature(error)


def test_only_error_conditions_of_spark_concern_the_plan() -> None:
    assert is_plan_error(RuntimeError("x.\n: Spark: [UNSUPPORTED_DATATYPE] Unsupported data type"))
    assert not is_plan_error(RuntimeError("write is not implemented: [shards]"))
