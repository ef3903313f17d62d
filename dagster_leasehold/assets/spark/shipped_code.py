"""Sends the project's code and the user's code to the workers of a Spark cluster.

`spark_resource` and `users_code` call it. Each top-level module becomes an archive, whose name
contains a hash of its content. A worker imports from the session's archives before its installed
packages, so nodes and workers run the same code. Only sessions with remote workers are registered
here, since workers on this host import the same files as this process.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dagster_leasehold.assets.errors import SparkFeatureMissing, SparkUnavailable
from dagster_leasehold.assets.spark.missing_features import lacks_feature
from dagster_leasehold.assets.spark.users_modules import OWN_PACKAGE, is_installed
from dagster_leasehold.lease_store.errors import one_line
from dagster_leasehold.shard_sources.registry import ENTRY_POINT_GROUP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
COMPANIONS = ("filelock", "tenacity", "typing_extensions")
"""Pure Python libraries that the project's modules need in a worker."""
NEVER = ("__main__", "__mp_main__", "sitecustomize", "usercustomize")
DATA_BYTES_MAX = 1 << 20
"""Larger data files in packages are not sent."""
SECRET_NAMES = (
    *("*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk"),
    *("id_rsa", "id_dsa", "id_ecdsa*", "id_ed25519*"),
)
"""Data files with such names can hold keys or passwords, and are not sent. Hidden files are never
sent."""
PRIVATE_KEY = b"PRIVATE KEY-----"
COMPILED = (".so", ".pyd", ".dylib")
CACHE_FOLDER = "__pycache__"
CONF_PREFIX = "leasehold.code."
HASH_LENGTH = 16
ENVIRONMENT = "environment"
WORKERS_PYTHON_KEY = "spark.sql.execution.pyspark.python"
WORKERS_PYTHON = f"{ENVIRONMENT}/bin/python"
"""The workers' Python in an environment archive that Spark has unpacked."""
_LONG_AGO = (1980, 1, 1, 0, 0, 0)

_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def begin(session: SparkSession, environment: str = "") -> None:
    """Send the project's code to a session with remote workers, and register the session.

    Args:
        environment: the archive of an environment with the workers' Python; empty to use their
            own Python.

    Raises:
        SparkUnavailable: the session has other code under these names, or does not accept an
            environment.
    """
    if environment and session.conf.get(WORKERS_PYTHON_KEY, None) != WORKERS_PYTHON:
        _add_environment(session, environment)
        session.conf.set(WORKERS_PYTHON_KEY, WORKERS_PYTHON)
    _sent[session] = set()
    _send(session, [OWN_PACKAGE, *COMPANIONS])


def send_users_code(session: object, module: str) -> None:
    """Send the user's modules to a registered session, each module once.

    These are the loaded modules outside this Python's installation, the transform's module, and the
    packages of sources in use. A package with compiled modules is not sent, because Python cannot
    import them from an archive.

    Raises:
        SparkUnavailable: the session has other code under these names.
    """
    if session not in _sent:
        return
    loaded = {name: code for name, code in [*sys.modules.items()] if "." not in name}
    own = [name for name, code in loaded.items() if not _installed(code)]
    installed = [module.partition(".")[0], *_sources()]
    names = dict.fromkeys([*own, *(name for name in installed if name in loaded)])
    _send(session, [name for name in names if name not in (OWN_PACKAGE, *NEVER)])


def _send(session: Any, names: Iterable[str]) -> None:
    sent = _sent[session]
    for name in names:
        if name in sent or (archive := _archive(name)) is None:
            sent.add(name)
            continue
        key = f"{CONF_PREFIX}{name}"
        version = session.conf.get(key, None)
        if version not in (None, archive.name):
            # Workers keep the modules that they have imported, so new code would have no effect.
            raise SparkUnavailable(
                f"The Spark session already has other code of {name}: remove session_id from the "
                "address of Spark, so that each run has its own session."
            )
        if version is None:
            _add(session, archive)
            session.conf.set(key, archive.name)
        sent.add(name)


def _add_environment(session: Any, environment: str) -> None:
    try:
        session.addArtifacts(f"{environment}#{ENVIRONMENT}", archive=True)
    except Exception as error:
        if not lacks_feature(error):
            raise
        raise SparkFeatureMissing(
            f"This Spark accepts no environment for its workers ({one_line(str(error))}): install "
            "its packages on them, and remove spark.environment_archive."
        ) from error


def _add(session: Any, archive: Path) -> None:
    try:
        session.addArtifacts(str(archive), pyfile=True)
    except Exception as error:
        if not lacks_feature(error):
            raise
        _LOG.warning("This Spark accepts no code (%s): install it on its workers.", archive.name)


@cache
def _archive(name: str) -> Path | None:
    """Return the archive of a top-level module; None if it has no files, or compiled ones."""
    files = dict(_files(name, import_module(name)))
    if not files or any(path.suffix in COMPILED for path in files.values()):
        return None
    contents = {inner: path.read_bytes() for inner, path in sorted(files.items())}
    for point in _entry_points():
        if point.module.partition(".")[0] == name:
            contents |= _description(point)
    return write_archive(Path(_folder().name), name, contents)


def write_archive(folder: Path, name: str, contents: dict[str, bytes]) -> Path:
    """Write an archive whose bytes and name depend only on its content; return its path."""
    digest = hashlib.sha256()
    for inner, content in sorted(contents.items()):
        digest.update(f"{len(inner)} {inner} {len(content)} ".encode())
        digest.update(content)
    archive = folder / f"{name}-{digest.hexdigest()[:HASH_LENGTH]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        # Python imports a folder without `__init__.py` only if the archive has an entry for it.
        folders = {f"{above}/" for inner in contents for above in PurePosixPath(inner).parents}
        for inner in sorted(folders - {"./"}):
            writer.writestr(zipfile.ZipInfo(inner, _LONG_AGO), b"")
        for inner, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(inner, _LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            writer.writestr(entry, content)
    return archive


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for the lifetime of this process, because a driver serves files from it."""
    return tempfile.TemporaryDirectory(prefix="leasehold-code-")


def _files(name: str, module: ModuleType) -> Iterator[tuple[str, Path]]:
    """Yield the name in the archive and the path of each file of a top-level module."""
    folders = [Path(entry) for entry in getattr(module, "__path__", ())]
    if not folders and (file := getattr(module, "__file__", None)) and Path(file).is_file():
        yield f"{name}{Path(file).suffix}", Path(file)
    for folder in filter(Path.is_dir, folders):
        for path in _within(folder):
            yield f"{name}/{path.relative_to(folder).as_posix()}", path


def _within(folder: Path) -> Iterator[Path]:
    """Yield the files of a package below a folder; follow links."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == CACHE_FOLDER:
            continue
        if path.is_dir():
            yield from _within(path)
        elif path.suffix in (".py", *COMPILED) or _is_plain_data(path):
            yield path


def _is_plain_data(path: Path) -> bool:
    """Return True for a small file that does not seem to hold a key or password."""
    if path.stat().st_size > DATA_BYTES_MAX:
        return False
    if any(fnmatch(path.name.lower(), name) for name in SECRET_NAMES):
        return False
    return PRIVATE_KEY not in path.read_bytes()


def _installed(module: ModuleType) -> bool:
    """Return True if a module belongs to this Python's installation, or has no file."""
    file = getattr(module, "__file__", None)
    paths = [file] if file else [*getattr(module, "__path__", ())]
    return not paths or is_installed(paths[0])


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _sources() -> list[str]:
    return [point.module.partition(".")[0] for point in _entry_points()]


def _description(point: EntryPoint) -> dict[str, bytes]:
    """Return the metadata files through which a worker finds a source's entry point."""
    folder = f"{point.name.replace('-', '_')}_leasehold_source-0.dist-info"
    text = f"[{point.group}]\n{point.name} = {point.value}\n"
    name = folder.partition("-")[0]
    return {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n".encode(),
        f"{folder}/entry_points.txt": text.encode(),
    }
