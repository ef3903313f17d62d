"""The deployment that a command works on: its settings, lease store and streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import listed, shown
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey, GroupName, ShardId
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.orchestration.commands import options
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import Settings, load_settings

if TYPE_CHECKING:
    from dagster_leasehold.assets.places.place import OutputPlace
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.lease_store.store import LeaseStore
    from dagster_leasehold.shard_sources.local_log import LocalLog
    from dagster_leasehold.shard_sources.source import ShardSource


def source_name(source: ShardSource) -> str:
    """Return the kind of a source, as it is called in declarations."""
    return source.spark_options().get("source", "")


@dataclass(frozen=True)
class Target:
    """The deployment that one command works on; the store is opened at first use.

    Attributes:
        module: the module that declares the streams; None means the module of the settings.
    """

    settings: Settings
    module: str | None = None

    @classmethod
    def at(cls, home: Path | None, module: str | None = None) -> Target:
        """Return the deployment of a home; None means the home of the settings."""
        settings = load_settings(home=home)
        if settings.home.exists() and not settings.home.is_dir():
            raise errors.InvalidSetting(f"The home {settings.home} is a file: use a folder.")
        return cls(settings, module)

    @cached_property
    def store(self) -> LeaseStore:
        """The existing lease store; commands that only read do not create one."""
        if self.settings.database_url is None and not (self.settings.home / "leases.db").exists():
            raise errors.StoreUnavailable(
                f"There is no lease store in {self.settings.home}: give another folder with "
                "--home, or create a store with `leasehold load` and `leasehold group create`."
            )
        return self.new_store

    @cached_property
    def new_store(self) -> LeaseStore:
        """The lease store; SQLite in the home is created if it is missing."""
        from dagster_leasehold.lease_store import open_store

        if self.settings.database_url is None:
            self.make_home()
        return open_store(self.settings.store_url)

    def make_home(self) -> None:
        """Create the home."""
        try:
            self.settings.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.InvalidSetting(
                f"The home {self.settings.home} cannot be created: {error.strerror}."
            ) from None

    @cached_property
    def streams(self) -> DeclaredStreams:
        """The declared streams."""
        return DeclaredStreams(self.settings, self.module)

    def declared(self, name: str | None) -> ShardStream:
        """Return a declared stream; None means the only one."""
        return self.streams.find(name)

    def local_log(self, name: str | None) -> LocalLog:
        """Return the local log of a declared stream, even if its files do not exist yet."""
        from dagster_leasehold.shard_sources.local_log import LocalLog

        declared = self.declared(name)
        if isinstance(declared.source, LocalLog):
            return declared.source
        raise errors.InvalidSetting(
            f"Stream {shown(declared.name)} reads from the source "
            f"{shown(source_name(declared.source))}, but this command works only on local logs: "
            "use the service's own tools."
        )

    def group(self, stream: str | None, group: str | None) -> Group:
        """Return a stored consumer group of a stream; None means the declared group."""
        declared = self.declared(stream)
        name = GroupName(group) if group is not None else declared.key.group
        groups = self.store.groups(declared.key.stream)
        for row in groups:
            if row.key.group == name:
                return row
        names = listed(row.key.group for row in groups)
        others = f"Its groups are: {names}." if groups else "`leasehold dev` creates it."
        raise errors.UnknownGroup(
            f"Stream {shown(declared.name)} has no consumer group {shown(name)}. {others}"
        )

    def own_output(self, key: GroupKey) -> OutputPlace:
        """Return a group's output folder for writing; this store owns a new folder."""
        from dagster_leasehold.assets.output.folder_owner import owned

        return owned(self.store, self.output(key))

    def output(self, key: GroupKey) -> OutputPlace:
        """Return the place of a group's output."""
        return self.settings.output_folder(key.stream, key.group, lambda: self.store)

    def leases(self, key: GroupKey, shards: Sequence[str] | None = None) -> list[ShardLease]:
        """Return the lease rows of the given shards; without any, of all shards by rank."""
        rows = {row.shard: row for row in self.store.snapshot(key).shards}
        ranked = sorted(rows, key=rank_key)
        for shard in shards or ():
            if ShardId(shard) not in rows:
                raise errors.UnknownShard(
                    f"Group {key} has no shard {shown(shard)}. Its shards are: {listed(ranked)}."
                )
        return [rows[ShardId(shard)] for shard in (shards or ranked)]

    def shard(self, key: GroupKey, shard: str) -> ShardLease:
        """Return the lease row of a shard."""
        return self.leases(key, [shard])[0]

    def named_shard(self, key: GroupKey, shard: str | None) -> ShardId | None:
        """Return the id of an optional shard argument."""
        return None if shard is None else self.shard(key, shard).shard


@dataclass(frozen=True, slots=True)
class DeploymentChoice:
    """The options of a command on a deployment; `command_line.expanded` gives them to Typer."""

    module: options.Module = None
    as_json: options.Json = False
    home: options.Home = None

    @property
    def target(self) -> Target:
        """The deployment."""
        return Target.at(self.home, self.module)


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """The argument STREAM and the options of a command that reads a group."""

    stream: options.AnyStream = None
    group: options.GroupName = None
    module: options.Module = None
    as_json: options.Json = False
    home: options.Home = None

    @property
    def target(self) -> Target:
        """The deployment."""
        return Target.at(self.home, self.module)

    def opened(self) -> tuple[Target, GroupKey]:
        """Return the deployment, and the stored group of the declared stream."""
        target = self.target
        return target, target.group(self.stream, self.group).key

    def declared(self) -> tuple[Target, ShardStream]:
        """Return the deployment, and the declared stream with its stored group."""
        target, key = self.opened()
        return target, replace(target.declared(self.stream), group=key.group)


@dataclass(frozen=True, slots=True)
class NamedGroup(GroupChoice):
    """The same for a command that changes something: the user must give the stream."""

    stream: options.Stream  # pyright: ignore[reportGeneralTypeIssues]
