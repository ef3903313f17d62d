"""Finds the project of the current folder, and the module that declares its streams.

It searches like `dagster dev`, except that it imports a Python file only if the text of the file
builds definitions with this package.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dagster_leasehold.lease_store.errors import InvalidSetting, shown

SETTINGS_FILE = "leasehold.toml"
PROJECT_FILE = "pyproject.toml"
WORKSPACE_FILE = "workspace.yaml"
DEFINITIONS_MODULE = "dagster_leasehold.orchestration.definitions"
BUILDING_WORDS = ("dagster_leasehold", "build_definitions")
FILE_BYTES_MAX = 1024 * 1024
"""Larger files are not read."""


def project_folder() -> Path:
    """Return the folder of the project that contains the current folder.

    This is the current folder if it has settings. Otherwise it is the nearest folder, from the
    current one up, whose `pyproject.toml` names a Dagster module. Without one, it is the current
    folder. The module will be imported, so a parent's `pyproject.toml` must belong to the owner of
    the current folder.

    Raises:
        InvalidSetting: a `pyproject.toml` in one of these folders cannot be read.
    """
    current = Path.cwd()
    if (current / SETTINGS_FILE).exists():
        return current
    owner = current.stat().st_uid
    for folder in (current, *current.parents):
        file = folder / PROJECT_FILE
        if not file.is_file() or (folder != current and file.stat().st_uid != owner):
            continue
        if any(_of_project_file(file)):
            return folder
    return current


def import_folders(home: Path) -> list[Path]:
    """Return the import path of the project, as in `dg`, and the home if it has settings.

    Settings in the home can name a module in the same folder.
    """
    project = project_folder()
    folders = [each for each in (project / "src", project) if each.is_dir()]
    return [*folders, home.absolute()] if (home / SETTINGS_FILE).is_file() else folders


def declaring_module() -> str | None:
    """Return the module that declares the streams of the current project; None without one.

    The first place that names a module is used: `[tool.dagster]` or `[tool.dg]` in the project's
    `pyproject.toml`, then `workspace.yaml`, then the folder's Python files that build definitions.

    Raises:
        InvalidSetting: a place names several modules, or a file cannot be read.
    """
    folder = project_folder()
    for place, modules in (
        (PROJECT_FILE, _of_project_file(folder / PROJECT_FILE)),
        (WORKSPACE_FILE, _of_workspace(folder / WORKSPACE_FILE)),
        ("Python files", _of_files(folder)),
    ):
        names = [*dict.fromkeys(modules)]
        if len(names) > 1:
            raise InvalidSetting(
                f"The {place} in {folder} can declare streams in the modules {shown(names[0])} and "
                f"{shown(names[1])}: choose one of them with -m."
            )
        if names:
            # This package's own module loads declared streams, and declares none.
            return None if names[0] == DEFINITIONS_MODULE else names[0]
    return None


def toml_values(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file; an empty dictionary if there is no file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidSetting(f"{path} cannot be read as settings: {reason}.") from None


def _of_project_file(path: Path) -> Iterator[str]:
    tool = _table(toml_values(path), "tool")
    dagster, project = _table(tool, "dagster"), _table(_table(tool, "dg"), "project")
    names: list[Any] = []
    if "module_name" in dagster:
        names = [dagster["module_name"]]
    elif modules := dagster.get("modules"):
        names = [each.get("name") for each in modules if isinstance(each, dict)]
    elif root := project.get("root_module"):
        names = [project.get("code_location_target_module", f"{root}.definitions")]
    yield from (name for name in names if isinstance(name, str))


def _of_workspace(path: Path) -> Iterator[str]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InvalidSetting(f"{path} cannot be read as a workspace: {reason}.") from None
    entries = content.get("load_from") if isinstance(content, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        for kind, value in entry.items() if isinstance(entry, dict) else ():
            names = value if isinstance(value, dict) else {}
            match kind:
                case "python_module" | "python_package":
                    name = names.get("module_name") or names.get("package_name") or value
                case "python_file":
                    file = Path(str(names.get("relative_path", value))).with_suffix("")
                    name = ".".join((file if not file.is_absolute() else Path(file.name)).parts)
                case _:
                    continue
            if isinstance(name, str):
                yield name


def _of_files(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("*.py")):
        if not file.stem.isidentifier() or not file.is_file():
            continue
        if file.stat().st_size > FILE_BYTES_MAX:
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if all(word in text for word in BUILDING_WORDS):
            yield file.stem


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) else {}
