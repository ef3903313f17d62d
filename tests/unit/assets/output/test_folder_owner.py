"""A folder of output has one owner: nothing of another lease store is touched in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, move

import pytest

from dagster_leasehold.assets.errors import OutputNotOwned, OutputUnwritable
from dagster_leasehold.assets.output import folder_owner
from dagster_leasehold.assets.output.folder_owner import MARK, FolderOwner, owned, take_over
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.local_place import LocalPlace, local_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.roles.identity import StoreIdentity
from dagster_leasehold.lease_store.store import LeaseStore
from tests.object_store import ENVIRONMENT, new_bucket


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_owner, "_own_folders", set())


@pytest.fixture(params=["disk", "store"])
def folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> OutputPlace:
    """A folder that does not exist yet, on a disk and in an object store."""
    if request.param == "disk":
        return local_place(tmp_path / "output" / "orders" / "default")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return output_place(f"s3://{new_bucket()}/output/orders/default")


def embedded(home: Path) -> LeaseStore:
    return open_store(f"sqlite:///{home / 'leases.db'}")


def test_the_first_store_owns_a_folder_and_any_other_is_refused(folder: OutputPlace) -> None:
    mine, other = MemoryStore(), MemoryStore()
    assert owned(mine, folder) == folder
    assert owned(mine, folder, again=True) == folder
    for again in (False, True):
        with pytest.raises(OutputNotOwned) as refused:
            owned(other, folder, again=again)
    assert str(folder) in str(refused.value)
    assert "leasehold db take-over" in str(refused.value)
    mark = (folder / MARK).content()
    assert mark is not None
    assert FolderOwner.parse(mark) == FolderOwner(mine.identity().id)


def test_one_of_many_concurrent_stores_owns_a_folder(folder: OutputPlace) -> None:
    """Method: threads with separate stores start at the same moment."""
    stores = [MemoryStore() for _ in range(8)]
    start, owners, errors = threading.Barrier(len(stores)), list[str](), list[Exception]()

    def come(store: MemoryStore) -> None:
        start.wait()
        try:
            owned(store, folder)
        except (OutputNotOwned, OutputUnwritable) as error:
            errors.append(error)
        else:
            owners.append(store.identity().id)

    threads = [threading.Thread(target=come, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(owners) <= 1, "in a store, all may have given way to each other"
    assert len(owners) + len(errors) == len(stores)
    settled = [store for store in stores if store.identity().id in owners] or stores[:1]
    owned(settled[0], folder, again=True)
    for store in stores:
        if store is not settled[0]:
            with pytest.raises(OutputNotOwned):
                owned(store, folder, again=True)


def test_take_over_changes_the_owner_and_the_old_one_is_refused(folder: OutputPlace) -> None:
    former, next_ = MemoryStore(), MemoryStore()
    owned(former, folder)
    before, after = take_over(next_, folder)
    assert before == FolderOwner(former.identity().id)
    assert after == FolderOwner(next_.identity().id)
    owned(next_, folder)
    owned(former, folder)  # this process has seen that it was its own
    with pytest.raises(OutputNotOwned):
        owned(former, folder, again=True)


def test_a_check_of_the_owner_does_not_change_the_folder(folder: OutputPlace) -> None:
    owned(MemoryStore(), folder, claim=False)
    assert (folder / MARK).content() is None
    owned(MemoryStore(), folder)
    with pytest.raises(OutputNotOwned):
        owned(MemoryStore(), folder, claim=False)


def test_a_folder_with_a_damaged_mark_has_no_owner(folder: OutputPlace) -> None:
    for content in (b"", b"{", b"[]", b'{"store": "x", "more": 1}', b"\xff"):
        (folder / MARK).put(content)
        with pytest.raises(OutputNotOwned, match="has a mark that no lease store wrote"):
            owned(MemoryStore(), folder)


@pytest.mark.parametrize("change", [copytree, move])
def test_a_home_that_is_copied_or_moved_as_a_whole_keeps_its_output(
    tmp_path: Path, change: Callable[[Path, Path], object]
) -> None:
    home, other = tmp_path / "home", tmp_path / "elsewhere" / "home"
    home.mkdir()
    store = embedded(home)
    owned(store, local_place(home / "output" / "orders" / "default"))
    store.close()
    other.parent.mkdir()
    change(home, other)
    moved = embedded(other)
    owned(moved, local_place(other / "output" / "orders" / "default"))
    assert moved.identity().id == store.identity().id


def test_a_copied_home_is_refused_by_output_outside_of_it(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "deeper" / "home"
    output = local_place(tmp_path / "output")
    home.mkdir()
    store = embedded(home)
    owned(store, output)
    store.close()
    copytree(home, other)
    with pytest.raises(OutputNotOwned, match="another copy of this lease store"):
        owned(embedded(other), output)
    take_over(embedded(other), output)
    with pytest.raises(OutputNotOwned, match="another copy of this lease store"):
        owned(embedded(home), output, again=True)


def test_a_store_that_moved_to_a_server_owns_the_folder_and_the_file_does_not(
    tmp_path: Path,
) -> None:
    home, output = tmp_path / "home", local_place(tmp_path / "home" / "output")
    home.mkdir()
    before = embedded(home)
    owned(before, output)
    server = MemoryStore()
    server._identity = StoreIdentity(before.identity().id)
    owned(server, output)
    with pytest.raises(OutputNotOwned, match="in a server"):
        owned(before, output, again=True)


def test_a_disk_without_hard_links_marks_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    folder = LocalPlace(tmp_path / "output")
    owned(MemoryStore(), folder)
    with pytest.raises(OutputNotOwned):
        owned(MemoryStore(), folder)
    assert [path.name for path in folder.path.iterdir()] == [MARK]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputUnwritable, match="allow this account to write there"):
        owned(MemoryStore(), local_place(tmp_path / "file" / "output"))
