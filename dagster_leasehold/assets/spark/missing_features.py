"""Pure rules that distinguish a Spark without a feature from a wrong plan or wrong code.

Other servers implement Spark's protocol too, and lack parts of it. They report this in different
ways: by an exception type of PySpark, an error condition of Spark, a gRPC status, or a text of
their own. Code that starts a Spark job calls this when the job fails.
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
        return False  # the code that a worker ran has raised
    is_refusal = isinstance(error, AttributeError) or type(error).__name__ == _REFUSAL
    return is_refusal or _LACKING.search(text) is not None


def is_of_a_plan(error: Exception) -> bool:
    """Return True if an error has an error condition of Spark, as an invalid plan causes."""
    return _CONDITION.search(str(error)) is not None
