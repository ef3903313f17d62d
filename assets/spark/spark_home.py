"""The folder that a local Spark takes for its home: the installed pyspark without its archives.

Spark puts `python/lib/pyspark.zip` of its home before all else on the search path of its Python
processes. Python keeps no compiled code of what it imports from an archive: each of half a dozen
daemons, and each worker that they fork, would compile pyspark anew, for 0.6 s of a processor on the
way to the first batch. Where the archive is not found they load the installed package, the same
that this process has.
"""

from __future__ import annotations

import uuid
from importlib.util import find_spec
from pathlib import Path

PYTHON_FOLDER = "python"
PACKAGE_FILE = "__init__.py"


def spark_home(cache: Path) -> Path:
    """A folder to use as SPARK_HOME for Spark on this machine.

    Args:
        cache: the folder itself, made when needed; it gets links to programs and jars.
    """
    spec = find_spec("pyspark")
    assert spec is not None, "pyspark is one of our requirements"
    assert spec.origin is not None
    cache.mkdir(parents=True, exist_ok=True)
    for source in Path(spec.origin).parent.iterdir():
        package = source.name.startswith("_") or (source / PACKAGE_FILE).exists()
        if source.is_dir() and not package and source.name != PYTHON_FOLDER:
            _link(cache / source.name, source)
    return cache.absolute()


def _link(link: Path, source: Path) -> None:
    if link.is_symlink() and link.readlink() == source:
        return
    # Another process may be starting a program through this link: it is never missing.
    draft = link.with_name(f"{link.name}.{uuid.uuid4().hex}.draft")
    draft.symlink_to(source)
    draft.replace(link)
