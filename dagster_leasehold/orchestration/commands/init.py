"""`leasehold init`: creates a runnable project with commented settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import InvalidSetting, listed, shown
from dagster_leasehold.lease_store.identifiers import GroupKey, StreamName
from dagster_leasehold.orchestration import presentation
from dagster_leasehold.orchestration.commands.doctor import check_all, show_findings
from dagster_leasehold.orchestration.commands.findings import Health
from dagster_leasehold.orchestration.commands.options import Home, Json
from dagster_leasehold.orchestration.commands.records import SHARDS_DEFAULT
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.project_module import SETTINGS_FILE
from dagster_leasehold.orchestration.scaffolding import PYTHON, quoted, written_settings
from dagster_leasehold.shard_sources.registry import LOCAL_LOG, source_kind, source_options

DEPLOYMENT = """\
# The settings of this deployment. A line `# name = value` shows the default, or an example if there
# is no default. To change the setting, remove the `# `.

# The nodes that this deployment serves; `leasehold dev --nodes` and `leasehold node` add others.
# nodes = ["local"]
# A node without a heartbeat for this time, in seconds, loses its shards.
# lease_timeout_s = 20.0
# The location of committed output: a folder in the home, or a URI such as s3://bucket/path.
# output = "output"
# The history of shards and batches is kept for this many days.
# history_days = 30.0
# The lease store is SQLite in the home. To use another database, set its URL in the environment
# variable LEASEHOLD_DATABASE_URL, since it can have a password.

# The Python module that declares the streams, or has their definitions.
module = "streams"
"""
STREAMS = '''\
"""The streams of this project. A line `# name=value` shows a default or an example."""

from dagster_leasehold import (
    Checks,
    Limits,
    Pace,
    Retention,
    ShardStream,
    TableSettings,
    arrow_transform,
    named_source,
    parse_json,
)


@arrow_transform
def parsed(records):
    """Parse path and status from JSON; records that do not parse go to quarantine."""
    return parse_json(records, "path string, status int")


{variable} = ShardStream(
{settings}
)
'''
SAMPLE = "".join(
    f'{{"path": "/{path}", "status": {status}}}\n'
    for path, status in (("cart", 200), ("search", 404), ("cart", 200), ("pay", 500))
)


def init(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to declare.")],
    *,
    source: Annotated[
        str,
        typer.Option(
            "--source", help="The kind of source: local_log, kafka, kinesis, loghub, or your own."
        ),
    ] = LOCAL_LOG,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the source; repeatable."),
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Create a project in this folder, with a source, a transform and all settings explained."""
    name = GroupKey.parse("default", stream).stream
    files = project_files(name, source, _options(source, option or []))
    for file in files:
        if Path(file).exists():
            raise InvalidSetting(f"The file {file} already exists: use another folder.")
    for file, text in files.items():
        try:
            Path(file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidSetting(f"{file} cannot be written: {error.strerror}.") from None
    target = Target.at(home)
    target.make_home()
    if source == LOCAL_LOG:
        log = target.local_log(name)
        log.create(log.root, SHARDS_DEFAULT, exist_ok=True).append_lines(_sample_file(name))
    if target.settings.database_url is None:
        open_store(target.settings.store_url, upgrade=True).close()
    findings = check_all(target)
    failed = any(each.health is Health.FAILED for each in findings)
    if as_json:
        document = {"stream": name, "files": [*files], "healthy": not failed, "findings": findings}
        presentation.show_json(document)
    else:
        presentation.say(f"Wrote {listed(files)}.")
        show_findings(findings)
        command = "leasehold doctor, after you have fixed this" if failed else "leasehold dev"
        presentation.say(f"The next command: {command}.")
    if failed:
        raise typer.Exit(1)


def _options(source: str, texts: Sequence[str]) -> Mapping[str, Any]:
    values: dict[str, str] = {}
    for each in texts:
        name, equals, value = each.partition("=")
        if not equals:
            raise InvalidSetting(f"The option {shown(each)} has no value: use NAME=VALUE.")
        values[name] = value
    try:
        return source_options(source, values).model_dump(mode="json", include={*values})
    except InvalidSetting as error:
        raise InvalidSetting(f"{error} Use --option NAME=VALUE.") from None


def project_files(name: StreamName, source: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the content of each file to write, by name."""
    variable = re.sub(r"\W", "_", name)
    if not variable.isidentifier() or iskeyword(variable) or variable in STREAMS:
        variable = f"stream_{variable}"
    texts = {option: quoted(value) for option, value in options.items()}
    of_source = "\n".join(written_settings(source_kind(source).options, texts, PYTHON))
    arguments = indent(f"{quoted(source)},\n{quoted(name)},\n{of_source}", "    ")
    values = {
        "name": quoted(name),
        "source": f"named_source(\n{arguments}\n)",
        "transform": "parsed",
    }
    settings = written_settings(
        ShardStream, values, PYTHON, omitted=("nodes", "on_commit", "asset_spec", "execute")
    )
    files = {
        SETTINGS_FILE: DEPLOYMENT,
        "streams.py": STREAMS.format(
            variable=variable, settings=indent("\n".join(settings), "    ")
        ),
    }
    return files | ({_sample_file(name): SAMPLE} if source == LOCAL_LOG else {})


def _sample_file(name: StreamName) -> str:
    return f"{name}.jsonl"
