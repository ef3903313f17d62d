"""The documentation matches the code: commands, links, settings, columns, states, examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_settings import SparkSettings
from dagster_leasehold.lease_store import tables
from dagster_leasehold.lease_store.rules.states import EDGES, ShardState
from dagster_leasehold.orchestration.scaffolding import default_of, part_of, quoted, settings_in
from dagster_leasehold.orchestration.settings import Settings
from tests.environment import forget_settings
from tests.failpoints import Failpoint
from tests.sources.worlds import own_source
from tests.unit.docs import command_line_page

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
CONTRIBUTING = ROOT / "contributing"
SITE = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
PAGES = sorted([*SITE, ROOT / "CONTRIBUTING.md", *CONTRIBUTING.glob("*.md")])
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n+", re.S)
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# The tests of the user interface write these on request.
NEED_A_TABLE = {"read-the-table.md": ("With any engine", "With dagster-iceberg")}
"""Sections whose examples `tests/integration/docs/test_how_tos.py` runs."""
PICTURES_MADE_LATER = {"docs/images/ui.png"}
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
BANNED = (
    "simply", "just works", "blazing", "seamless", "leverage", "utilize", "cutting-edge",
    "world-class", "state-of-the-art", "robust", "effortless",
)  # fmt: skip

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def section(page: Path, heading: str) -> str:
    """The text under a heading of the second level."""
    text = page.read_text("utf-8")
    named = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert named, f"{page} has no section {heading}"
    return named[1]


def fences(page: Path, language: str, heading: str | None = None) -> list[str]:
    """The blocks of a page, or of one of its sections."""
    blocks = FENCE.findall(section(page, heading) if heading else page.read_text("utf-8"))
    return [dedent(body) for kind, body in blocks if kind == language]


def pages_with(language: str) -> pytest.MarkDecorator:
    chosen = [page for page in PAGES if fences(page, language)]
    return pytest.mark.parametrize("page", chosen, ids=[page.name for page in chosen])


def commands_in(page: Path) -> Iterator[str]:
    """Yield the commands for a reader: lines of console blocks, and commands in running text."""
    for block in fences(page, "console"):
        yield from (line[2:] for line in block.splitlines() if line.startswith("$ "))
    text = FENCE.sub("", page.read_text("utf-8"))
    for span in re.findall(r"`([^`\n]+)`", text):
        if span.startswith(("leasehold ", "make ")) and span not in ("make", "leasehold"):
            yield span


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def rows(page: Path, heading: str | None = None) -> list[list[str]]:
    """The cells of all table rows of a page, or of one of its sections."""
    text = section(page, heading) if heading else page.read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pages
def test_every_link_has_a_target(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    for target in LINK.findall(text):
        if target.startswith("http"):
            continue
        path, _, fragment = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if str(linked.relative_to(ROOT)) in PICTURES_MADE_LATER:
            continue
        assert linked.exists(), f"{page.name} links to {target}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.M)
            assert fragment in map(anchor, headings), f"{page.name} links to {target}"


@pages
def test_every_page_is_linked(page: Path) -> None:
    if page == ROOT / "README.md":
        return
    linked = {
        (other.parent / target.partition("#")[0]).resolve()
        for other in PAGES
        if other != page
        for target in LINK.findall(other.read_text("utf-8"))
    }
    assert page in linked, f"nothing links to {page}"


@pages
def test_every_command_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    offered = dict(command_line_page.commands(command_line_page.root()))
    for command in commands_in(page):
        words = shlex.split(command.replace("…", ""), comments=True)
        program = Path(words[0]).name
        if program == "make":
            names = [word for word in words[1:] if "=" not in word]
            assert set(names) <= targets, command
        elif program == "leasehold":
            check_leasehold(words[1:], offered, command)
        else:
            assert program in {
                *("cd", "create-dagster", "dg", "export", "mkdir", "python", "venv-pack")
            }, command


def check_leasehold(words: list[str], offered: dict[tuple[str, ...], Any], command: str) -> None:
    of_all = {"-h", "--debug", "--version", "--install-completion", "--show-completion"}
    words = [word for word in words if word not in of_all]
    groups = {path[0] for path in offered if len(path) == 2}
    if not words or words[0] == "COMMAND" or (words[0] in groups and len(words) == 1):
        return
    path = tuple(words[:2]) if words[0] in groups else (words[0],)
    assert path in offered, f"there is no command: {command}"
    flags = {
        flag
        for parameter in offered[path].params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    used = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}
    assert used <= flags, f"{command}: no option {used - flags}"


@pages
def test_pages_contain_no_marketing_words(page: Path) -> None:
    text = page.read_text("utf-8")
    for word in BANNED:
        assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.I), word


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=lambda page: page.name)
def test_a_how_to_starts_with_its_use_and_ends_with_a_check(page: Path) -> None:
    _, first, *_, last = FRONT_MATTER.sub("", page.read_text()).split("\n\n")
    assert first.startswith("Use this ") or "Use this page" in first
    assert last.startswith("**Check:** ")


@pages
def test_lines_have_at_most_100_characters(page: Path) -> None:
    """Long lines only where Markdown has no way to break them."""
    if page == command_line_page.PAGE:
        return
    text = re.sub(r"^\|.*$", "", FENCE.sub("", page.read_text("utf-8")), flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    assert max(map(len, text.splitlines())) <= 100


@pages_with("python")
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python blocks of a page, one after the other in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    if page.name == "own-source.md":
        packages = tmp_path / "packages"
        own_source.install(packages, tmp_path)
        monkeypatch.syspath_prepend(str(packages))
    # It would stay for all tests of this process.
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", lambda _: None)
    namespace: dict[str, Any] = {}
    elsewhere = [
        block
        for heading in NEED_A_TABLE.get(page.name, ())
        for block in fences(page, "python", heading)
    ]
    for number, block in enumerate(fences(page, "python")):
        if block in elsewhere:
            continue
        exec(compile(block, f"{page.name}, block {number + 1}", "exec"), namespace)
    if "defs" in namespace:
        monkeypatch.setenv("BRANCH_DATABASE_URL", "sqlite:///branch.db")
        defs = namespace["defs"]
        assert (defs() if callable(defs) else defs).resolve_all_asset_keys()


@pages_with("toml")
def test_settings_files_in_examples_are_valid(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_leasehold.orchestration.settings import SETTINGS_FILE, load_settings

    monkeypatch.chdir(tmp_path)
    for block in fences(page, "toml"):
        if block.startswith("# pyproject.toml\n"):
            continue
        authority = tmp_path / "authority.pem"
        authority.touch()
        here = block.replace("/etc/leasehold/authority.pem", str(authority))
        Path(SETTINGS_FILE).write_text(here, "utf-8")
        assert load_settings().model_fields_set


def test_the_command_line_page_is_current() -> None:
    """Run `python -m tests.unit.docs.command_line_page` after a change of the commands."""
    written = command_line_page.PAGE.read_text("utf-8")
    assert command_line_page.comparable(written) == command_line_page.comparable(
        command_line_page.page()
    )


def test_the_page_has_a_section_for_every_command() -> None:
    text = command_line_page.PAGE.read_text("utf-8")
    for path, _ in command_line_page.commands(command_line_page.root()):
        name = " ".join(path)
        section = re.search(rf"^## leasehold {name}$(.*?)(?=^## |\Z)", text, re.M | re.S)
        assert section, name
        assert all(body.startswith(f"$ leasehold {name}") for _, body in FENCE.findall(section[1]))


def settings_of(model: Any, above: str = "") -> Iterator[tuple[str, tuple[list[str], str]]]:
    """Yield the settings of a declared class and its parts, with their defaults and meanings."""
    for name, field, meaning in settings_in(model):
        part = part_of(field)
        default = [] if part or field.is_required() else [quoted(default_of(field))]
        yield f"{above}{name}", (default, meaning)
        if part:
            yield from settings_of(part, f"{above}{name}.")


def test_all_settings_are_documented_with_their_defaults() -> None:
    named = [row for row in rows(DOCS / "reference/settings.md") if code(row[0])]
    documented = {code(row[0])[0]: row for row in named if len(row) == 4}
    of_tables = {code(row[0])[0]: row for row in named if len(row) == 3}
    keys_of_spark = ("[spark]", *SparkSettings.model_fields)
    of_spark = {name: of_tables.pop(name, None) for name in keys_of_spark}
    of_streams = of_tables
    assert set(documented) == set(Settings.model_fields)
    assert None not in of_spark.values()
    assert code(documented["spark"][2]) == [SparkSettings().engine]
    for name in ("lease_timeout_s", "home"):
        default = str(Settings.model_fields[name].default)
        assert code(documented[name][2]) == [default], name
    settings = dict(settings_of(ShardStream))
    assert set(of_streams) == set(settings)
    for name, (default, meaning) in settings.items():
        assert code(of_streams[name][1]) == default, name
        assert re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", of_streams[name][2]) == meaning, name
    for name in Settings.model_fields:
        assert code(documented[name][1]) == [f"LEASEHOLD_{name.upper()}"]


def test_all_settings_of_decode_are_documented_with_their_defaults() -> None:
    named = {code(row[0])[0]: row for row in rows(DOCS / "how-to/formats.md") if code(row[0])}
    settings = dict(settings_of(Decode))
    assert set(named) == set(settings)
    for name, (default, meaning) in settings.items():
        assert (code(named[name][1]), named[name][2]) == (default, meaning), name


def test_all_columns_are_documented() -> None:
    page = CONTRIBUTING / "lease-tables.md"
    for table in tables.metadata.sorted_tables:
        named = [code(row[0])[0] for row in rows(page, table.name) if code(row[0])]
        assert sorted(named) == sorted(column.name for column in table.columns), table.name


def test_all_edges_and_states_are_documented() -> None:
    page = CONTRIBUTING / "lease-tables.md"
    documented = {
        (int(row[0]), code(row[1])[0] if code(row[1]) else None, code(row[2])[0])
        for row in rows(page, "Edges")
        if row[0].isdecimal()
    }
    assert documented == {
        (number, before.value if before else None, after.value)
        for (before, after), number in EDGES.items()
    }
    diagram = (DOCS / "images/states.svg").read_text("utf-8")
    edge = r"<title>(\S+) --&gt; (\S+): (\d+)</title>.*>\3 [^<]+</text>"
    drawn = set(re.findall(edge, diagram))
    assert drawn == {
        (before.value if before else "[*]", after.value, str(number))
        for (before, after), number in EDGES.items()
    }
    explained = (DOCS / "concepts/how-it-works.md").read_text("utf-8")
    for state in ShardState:
        assert f"`{state.value}`" in explained


def test_all_stop_reasons_are_documented() -> None:
    page = DOCS / "how-to/troubleshooting.md"
    named = [code(row[0])[0] for row in rows(page, "Why a run stops")[1:]]
    assert sorted(named) == sorted(reason.value for reason in StopReason)


def test_each_decision_says_what_was_rejected() -> None:
    decisions = (CONTRIBUTING / "decisions.md").read_text("utf-8").split("\n## ")[1:]
    assert [text.partition(".")[0] for text in decisions] == [*map(str, range(1, 13))]
    assert all("\nRejected: " in text for text in decisions)


def test_the_site_stays_within_its_limits() -> None:
    assert len(SITE) <= 30
    assert sum(len(page.read_text("utf-8").split()) for page in SITE) <= 25_000
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120
    assert len((ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()) <= 60


@pages
def test_named_paths_exist(page: Path) -> None:
    """Paths that start with a folder of the repository are checked; `output/STREAM` is in a
    home.
    """
    text = FENCE.sub("", page.read_text("utf-8"))
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_races_name_the_files_that_prevent_them() -> None:
    sections = (CONTRIBUTING / "races.md").read_text("utf-8").split("\n## ")[1:]
    assert len(sections) >= 10
    for section in sections:
        assert re.search(r"^`(\w+/[\w/]+\.py|LeaseStore\.\w+)`", section, re.M), section[:60]


@pytest.mark.parametrize("life", ["life-of-a-record.md", "life-of-a-lease.md"])
def test_each_step_of_a_life_names_functions_that_exist(life: str) -> None:
    """A step ends with lines like: → [`x.py`](../dagster_leasehold/x.py): `Class.method`, `f`."""
    text = (CONTRIBUTING / life).read_text("utf-8")
    steps = re.split(r"^\d+\. ", text, flags=re.M)[1:]
    assert 11 <= len(steps) <= 13
    for step in steps:
        places = re.findall(r"→ \[`([^`]+)`\]\(\.\./([^)]+)\):((?:\s+`[\w.]+`,?)+)", step)
        assert places, step
        assert step.count("→") == len(places)
        for shown, path, names in places:
            assert f"dagster_leasehold/{shown}" == path
            module = (ROOT / path).read_text("utf-8")
            for dotted in code(names):
                for part in dotted.split("."):
                    assert re.search(rf"^ *(?:class|def) {part}\b", module, re.M), (path, dotted)


def test_the_table_of_changes_names_existing_files() -> None:
    named = rows(ROOT / "CONTRIBUTING.md", "Where do I change …")
    assert len(named) > 10
    for row in named[1:]:
        paths = [span for cell in row[1:] for span in code(cell) if "/" in span]
        assert len(paths) > 1, row
        for path in paths:
            assert (ROOT / path).exists(), path


def test_all_benchmarks_are_listed() -> None:
    text = (CONTRIBUTING / "benchmarks.md").read_text("utf-8")
    named = set(re.findall(r"python -m benchmarks\.(\w+)", text))
    assert named == {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")}


def test_all_failpoints_are_documented() -> None:
    documented = [
        (int(row[0]), code(row[1])[0], row[2])
        for row in rows(CONTRIBUTING / "failpoints.md")
        if row[0].isdecimal()
    ]
    assert documented == [(point.number, point.label, point.interrupts) for point in Failpoint]


def test_defects_name_tests_that_exist() -> None:
    named = [code(row[-1])[0] for row in rows(CONTRIBUTING / "defects.md") if code(row[-1])]
    assert len(named) > 30
    for test in named:
        path, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text("utf-8"), test


def test_the_threat_model_names_tests_that_exist() -> None:
    named = [name for row in rows(CONTRIBUTING / "threat-model.md") for name in code(row[-1])]
    tests = [name for name in named if name.startswith("tests/")]
    assert len(tests) > 15
    for name in tests:
        assert (ROOT / name).is_file(), name
