"""Code that travels with a session: the project's own and the user's, to workers of a cluster.

Each top-level module is an archive of its own, whose name holds a hash of its content. A worker
puts the archives of a session before all that is installed there, so that nodes and workers run
the same code. A session that is not remembered here has its workers on this host, where they
import what this process imports.
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
"""Libraries without compiled code that the project's own modules need in a worker."""
NEVER = ("__main__", "__mp_main__", "sitecustomize", "usercustomize")
DATA_BYTES_MAX = 1 << 20
"""Larger files beside modules stay at home."""
SECRET_NAMES = (
    *("*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk"),
    *("id_rsa", "id_dsa", "id_ecdsa*", "id_ed25519*"),
)
"""Files beside modules that hold keys or passwords; hidden ones stay at home in any case."""
PRIVATE_KEY = b"PRIVATE KEY-----"
COMPILED = (".so", ".pyd", ".dylib")
CACHE_FOLDER = "__pycache__"
CONF_PREFIX = "leasehold.code."
HASH_LENGTH = 16
ENVIRONMENT = "environment"
WORKERS_PYTHON_KEY = "spark.sql.execution.pyspark.python"
WORKERS_PYTHON = f"{ENVIRONMENT}/bin/python"
"""Where workers find the Python of an archive that Spark has unpacked for them."""
_LONG_AGO = (1980, 1, 1, 0, 0, 0)

_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def begin(session: SparkSession, environment: str = "") -> None:
    """Send the project's own code to a session whose workers are elsewhere, and remember it.

    Args:
        session: a new one, or one that other processes share.
        environment: the file of the environment whose Python the workers run; empty for theirs.

    Raises:
        SparkUnavailable: the session has other code under these names, or takes no environment.
    """
    if environment and session.conf.get(WORKERS_PYTHON_KEY, None) != WORKERS_PYTHON:
        _add_environment(session, environment)
        session.conf.set(WORKERS_PYTHON_KEY, WORKERS_PYTHON)
    _sent[session] = set()
    _send(session, [OWN_PACKAGE, *COMPANIONS])


def send_users_code(session: object, module: str) -> None:
    """Send the user's modules to a session that was remembered; each of them once.

    These are all that this process has loaded from outside its Python's installation, the one that
    is named, and the packages of sources that are in use. Where such a package is installed, it
    travels only if it holds no compiled modules, which Python does not load from an archive.

    Args:
        session: where a job is about to run.
        module: the full name of the transform's module.

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
            # Its workers would keep the modules that they have imported.
            raise SparkUnavailable(
                f"The Spark session already has other code of {name}: take session_id out of the "
                "address of Spark, so that each run has a session of its own."
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
            f"This Spark takes no environment for its workers ({one_line(str(error))}): install on "
            "them what it holds, and leave spark.environment_archive out."
        ) from error


def _add(session: Any, archive: Path) -> None:
    try:
        session.addArtifacts(str(archive), pyfile=True)
    except Exception as error:
        if not lacks_feature(error):
            raise
        _LOG.warning("This Spark takes no code (%s): install it on its workers.", archive.name)


@cache
def _archive(name: str) -> Path | None:
    """Return the archive of a top-level module; None if it cannot travel in one.

    It is made once in a process, which has loaded its modules once as well.
    """
    files = dict(_files(name, import_module(name)))
    if not files or any(path.suffix in COMPILED for path in files.values()):
        return None
    contents = {inner: path.read_bytes() for inner, path in sorted(files.items())}
    for point in _points():
        if point.module.partition(".")[0] == name:
            contents |= _description(point)
    return write_archive(Path(_folder().name), name, contents)


def write_archive(folder: Path, name: str, contents: dict[str, bytes]) -> Path:
    """Write an archive, whose bytes and name follow from its content alone; return its path."""
    digest = hashlib.sha256()
    for inner, content in sorted(contents.items()):
        digest.update(f"{len(inner)} {inner} {len(content)} ".encode())
        digest.update(content)
    archive = folder / f"{name}-{digest.hexdigest()[:HASH_LENGTH]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        # Python takes a folder without `__init__.py` for a package only if it is an entry itself.
        folders = {f"{above}/" for inner in contents for above in PurePosixPath(inner).parents}
        for inner in sorted(folders - {"./"}):
            written.writestr(zipfile.ZipInfo(inner, _LONG_AGO), b"")
        for inner, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(inner, _LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            written.writestr(entry, content)
    return archive


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that lasts as long as this process: a driver serves files out of it."""
    return tempfile.TemporaryDirectory(prefix="leasehold-code-")


def _files(name: str, module: ModuleType) -> Iterator[tuple[str, Path]]:
    """Yield the files of a top-level module that are still there, each with its name inside."""
    folders = [Path(entry) for entry in getattr(module, "__path__", ())]
    if not folders and (own := getattr(module, "__file__", None)) and Path(own).is_file():
        yield f"{name}{Path(own).suffix}", Path(own)
    for folder in filter(Path.is_dir, folders):
        for path in _within(folder):
            yield f"{name}/{path.relative_to(folder).as_posix()}", path


def _within(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that belong to a package; its links are followed."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == CACHE_FOLDER:
            continue
        if path.is_dir():
            yield from _within(path)
        elif path.suffix in (".py", *COMPILED) or _is_plain_data(path):
            yield path


def _is_plain_data(path: Path) -> bool:
    """Return True for a small file that holds no key or password, as far as can be told."""
    if path.stat().st_size > DATA_BYTES_MAX:
        return False
    if any(fnmatch(path.name.lower(), name) for name in SECRET_NAMES):
        return False
    return PRIVATE_KEY not in path.read_bytes()


def _installed(module: ModuleType) -> bool:
    """Return True if a module belongs to this Python's installation, or is in no file."""
    file = getattr(module, "__file__", None)
    places = [file] if file else [*getattr(module, "__path__", ())]
    return not places or is_installed(places[0])


@cache
def _points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _sources() -> list[str]:
    return [point.module.partition(".")[0] for point in _points()]


def _description(point: EntryPoint) -> dict[str, bytes]:
    """Return the files by which a worker finds a package's source through its entry point."""
    folder = f"{point.name.replace('-', '_')}_leasehold_source-0.dist-info"
    text = f"[{point.group}]\n{point.name} = {point.value}\n"
    name = folder.partition("-")[0]
    return {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n".encode(),
        f"{folder}/entry_points.txt": text.encode(),
    }
