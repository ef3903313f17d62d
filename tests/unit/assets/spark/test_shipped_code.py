"""Code that is sent with a session, recorded by a fake session."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import UnsupportedOperationException  # noqa: TID253

from dagster_leasehold.assets.errors import SparkFeatureMissing, SparkUnavailable
from dagster_leasehold.assets.spark import shipped_code, users_modules
from dagster_leasehold.assets.spark.shipped_code import COMPANIONS, OWN_PACKAGE

NAME = "shop_of_this_test"


class Session:
    """Notes the archives that it is given, and its configuration."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.conf: Any = self
        self.settings: dict[str, str] = {}
        self.archives: list[Path] = []
        self.environments: list[str] = []
        self._refusal = refusal

    def get(self, key: str, default: str | None) -> str | None:
        return self.settings.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value

    def addArtifacts(  # noqa: N802
        self, path: str, *, pyfile: bool = False, archive: bool = False
    ) -> None:
        assert pyfile is not archive
        if self._refusal:
            raise self._refusal
        if archive:
            self.environments.append(path)
            return
        self.archives.append(Path(path))

    @property
    def names(self) -> list[str]:
        return [archive.name.rpartition("-")[0] for archive in self.archives]


def begun() -> Session:
    session: Any = Session()
    shipped_code.begin(session)
    return session


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the user's that this process has loaded."""
    package = tmp_path / NAME
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "prices.py").write_text("PRICE = 1\n")
    (package / "fields.json").write_text("{}")
    (package / "huge.bin").write_bytes(b"\0" * (shipped_code.DATA_BYTES_MAX + 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(NAME)
    shipped_code._archive.cache_clear()
    yield package
    shipped_code._archive.cache_clear()
    assert sys.modules.pop(NAME) is module


def python(code: str, archives: list[Path]) -> str:
    """Return the output of a Python with only these archives and its standard library."""
    begin = f"import sys; sys.path[:0] = {[*map(str, archives)]!r}\n"
    command = [sys.executable, "-I", "-S", "-c", begin + code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_task_runs_without_an_installed_package() -> None:
    """Goal: a worker's imports need only PySpark and pyarrow."""
    session = begun()
    assert session.names == [OWN_PACKAGE, *COMPANIONS]
    code = "from dagster_leasehold.assets.consuming import range_tasks; print(range_tasks.__file__)"
    assert python(code, session.archives).startswith(str(session.archives[0]))


def test_modules_of_the_user_are_sent_once_with_their_data_files(project: Path) -> None:
    session = begun()
    shipped_code.send_users_code(session, f"{NAME}.inner.prices")
    sent = session.names
    assert NAME in sent
    # Modules that the tests have loaded from outside this Python's installation count as the
    # user's.
    assert __name__.partition(".")[0] in sent
    assert "pyarrow" not in sent
    assert "pydantic" not in sent
    shipped_code.send_users_code(session, f"{NAME}.inner.prices")
    assert session.names == sent
    [archive] = [path for path in session.archives if path.name.startswith(NAME)]
    code = (
        f"from importlib.resources import files; from {NAME}.inner.prices import PRICE\n"
        f"print(PRICE, sorted(each.name for each in files('{NAME}').iterdir()))"
    )
    assert python(code, [archive]).strip() == "1 ['__init__.py', 'fields.json', 'inner']"


SECRETS = {
    ".env": b"TOKEN=1",
    "prod.env": b"TOKEN=1",
    ".env.local": b"TOKEN=1",
    "env/.env": b"TOKEN=1",
    "client.pem": b"",
    "inner/CLIENT.PEM": b"",
    "client.key": b"\x30\x82",
    "client.p12": b"\x30\x82",
    "trust.jks": b"\xfe\xed",
    "id_rsa": b"",
    "id_ed25519": b"",
    # Identified by its content, for any name.
    "deploy": b"-----BEGIN OPENSSH PRIVATE KEY-----\n",
    "account.json": b'{"private_key": "-----BEGIN PRIVATE KEY-----\\nMII"}',
    "long.txt": b" " * 100_000 + b"-----BEGIN RSA PRIVATE KEY-----\n",
}


def test_keys_and_environment_files_are_not_sent(project: Path) -> None:
    for name, content in SECRETS.items():
        path = project / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (project / "keys.py").write_text("KEY = 1\n")
    (project / "public.crt").write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    (project / "inner" / "linked.json").symlink_to(project / "account.json")
    session = begun()
    shipped_code.send_users_code(session, NAME)
    [archive] = [path for path in session.archives if path.name.startswith(NAME)]
    with zipfile.ZipFile(archive) as sent:
        files = {name.removeprefix(f"{NAME}/") for name in sent.namelist() if name[-1] != "/"}
        assert not any(b"TOKEN" in sent.read(name) for name in sent.namelist())
    assert files == {"__init__.py", "inner/prices.py", "fields.json", "keys.py", "public.crt"}


def test_a_session_on_this_host_receives_no_code(project: Path) -> None:
    session = Session()
    shipped_code.send_users_code(session, NAME)
    shipped_code.send_users_code(object(), NAME)
    assert session.archives == []


@pytest.mark.parametrize("installed", [True, False])
def test_an_installed_package_with_the_transform_is_sent(
    project: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    folders = (*users_modules._installation(), *(project.parent,) * installed)
    monkeypatch.setattr(users_modules, "_installation", lambda: folders)
    session = begun()
    shipped_code.send_users_code(session, "another.module")
    assert (NAME in session.names) is not installed
    shipped_code.send_users_code(session, f"{NAME}.inner")
    assert NAME in session.names


def test_modules_without_files_are_not_sent(project: Path) -> None:
    session = begun()
    project.rename(project.with_name("elsewhere"))
    shipped_code.send_users_code(session, NAME)
    assert NAME not in session.names


def test_compiled_modules_are_not_sent(project: Path) -> None:
    (project / "fast.so").touch()
    session = begun()
    shipped_code.send_users_code(session, NAME)
    assert NAME not in session.names


def test_the_name_of_an_archive_depends_on_its_content(tmp_path: Path) -> None:
    write = shipped_code.write_archive
    first = write(tmp_path, "shop", {"a.py": b"1", "b.py": b"2"})
    content = first.read_bytes()
    assert write(tmp_path, "shop", {"b.py": b"2", "a.py": b"1"}) == first
    assert first.read_bytes() == content
    assert write(tmp_path, "shop", {"a.py": b"1", "b.py": b"3"}) != first
    assert write(tmp_path, "shop", {"a.py": b"12", "b.py": b""}) != first


def test_a_session_with_other_code_is_refused() -> None:
    """Goal: changed code is never mixed with the modules that workers have imported."""
    session = begun()
    shipped_code.begin(session)  # pyright: ignore[reportArgumentType]
    assert session.names == [OWN_PACKAGE, *COMPANIONS], "another process has sent the same"
    session.settings[f"{shipped_code.CONF_PREFIX}{OWN_PACKAGE}"] = "other.zip"
    with pytest.raises(SparkUnavailable, match=f"other code of {OWN_PACKAGE}: remove session_id"):
        shipped_code.begin(session)  # pyright: ignore[reportArgumentType]


def test_an_environment_is_unpacked_once_and_workers_use_its_python() -> None:
    session: Any = Session()
    for _ in range(2):
        shipped_code.begin(session, "/srv/environment.tar.gz")
    assert session.environments == ["/srv/environment.tar.gz#environment"]
    assert session.settings[shipped_code.WORKERS_PYTHON_KEY] == "environment/bin/python"


def test_a_spark_that_accepts_no_code_uses_its_own(caplog: pytest.LogCaptureFixture) -> None:
    session: Any = Session(RuntimeError("UNIMPLEMENTED: AddArtifacts"))
    shipped_code.begin(session)
    assert "install it on its workers" in caplog.text
    caplog.clear()
    session = Session(UnsupportedOperationException("handle add artifacts"))
    shipped_code.begin(session)
    assert "install it on its workers" in caplog.text
    session = Session(RuntimeError("no space left"))
    with pytest.raises(RuntimeError, match="no space left"):
        shipped_code.begin(session)


def test_the_error_of_a_spark_that_accepts_no_environment_says_where_to_install_it() -> None:
    session: Any = Session(UnsupportedOperationException("handle add artifacts"))
    with pytest.raises(SparkFeatureMissing, match="accepts no environment for") as caught:
        shipped_code.begin(session, "/srv/environment.tar.gz")
    assert "(handle add artifacts)" in str(caught.value)
    assert "remove spark.environment_archive" in str(caught.value)
    assert session.settings == {}


def test_a_source_is_found_by_its_entry_point_on_workers(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("shop", f"{NAME}.inner.prices:PRICE", shipped_code.ENTRY_POINT_GROUP)
    monkeypatch.setattr(shipped_code, "_entry_points", lambda: (point,))
    session = begun()
    shipped_code.send_users_code(session, "")
    code = (
        "from importlib.metadata import entry_points\n"
        f"print([point.load() for point in entry_points(group={point.group!r})])"
    )
    assert python(code, session.archives).strip() == "[1]"
    assert point.name not in {each.name for each in entry_points(group=point.group)}
