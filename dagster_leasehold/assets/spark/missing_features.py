"""Pure rules that tell a Spark which lacks a feature from a plan or code that is wrong.

Servers that are not Spark speak its protocol as well, and lack parts of it. None says so in the
same words: a type of PySpark's, a condition of Spark's, a status of gRPC, or a text of its own.
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
    """Return True if an error means that this Spark does not know the request."""
    text = str(error)
    if TRACE_BEGIN in text:
        return False  # a worker was at work: the error is of the code that it ran
    of_type = isinstance(error, AttributeError) or type(error).__name__ == _REFUSAL
    return of_type or _LACKING.search(text) is not None


def is_of_a_plan(error: Exception) -> bool:
    """Return True if an error bears a condition of Spark's own, as for what no plan can hold."""
    return _CONDITION.search(str(error)) is not None
