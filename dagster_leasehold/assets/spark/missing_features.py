"""Pure rules that distinguish a Spark without a feature from a wrong plan or wrong code.

Other implementations of Spark's protocol lack parts of it. They report this in different ways: by
an exception type of PySpark, an error condition of Spark, a gRPC status, or their own text. Code
that starts a Spark job calls this when the job fails.
"""

from __future__ import annotations

import re

TRACE_BEGIN = "Traceback (most recent call last)"
_LACKING = re.compile(
    r"(?i)(?<![a-z])(un|not[ _](yet[ _])?)(supported|implemented)|DATA_SOURCE_NOT_FOUND"
)
_CONDITION = re.compile(r"\[[A-Z][A-Z_]+(\.[A-Z_]+)?\]")
_REFUSAL = "UnsupportedOperationException"


def lacks_feature(error: Exception) -> bool:
    """Return True if an error means that this Spark does not support the request."""
    text = str(error)
    if TRACE_BEGIN in text:
        return False  # code on a worker raised it
    is_refusal = isinstance(error, AttributeError) or type(error).__name__ == _REFUSAL
    return is_refusal or _LACKING.search(text) is not None


def is_plan_error(error: Exception) -> bool:
    """Return True if an error has one of Spark's error conditions, as for an invalid plan."""
    return _CONDITION.search(str(error)) is not None
