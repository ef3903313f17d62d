"""The help of the command line: short options, groups of commands, and whole sentences."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from dagster_leasehold.orchestration.command_line import COMMANDS, SECTIONS, first_sentences, main

APPLICATIONS = ("group", "checkpoint", "gap", "shard", "quarantine", "db")


def shown_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.mark.parametrize("command", ["", "status", "group", "group create"])
def test_the_option_h_prints_the_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = command.split()
    help_ = shown_by(capsys, *words, "-h")
    assert help_ == shown_by(capsys, *words, "--help")
    assert "Usage: leasehold" in help_
    assert "-h, --help" in help_


def test_the_version_is_also_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown_by(capsys, "--version") == f"leasehold {version('dagster-leasehold')}\n"
    assert shown_by(capsys, "--version", "status") == shown_by(capsys, "--version")


def test_every_command_is_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for group in SECTIONS.values() for name in group]
    assert sorted(names) == sorted([*COMMANDS, "version"])
    out = shown_by(capsys, "--help")
    titles = re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE)
    assert titles == ["Options", *SECTIONS]
    assert re.findall(r"^  ([a-z]+)  ", out, re.MULTILINE) == names


@pytest.mark.parametrize("columns", ["60", "100"])
def test_the_help_has_whole_sentences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = " ".join(shown_by(capsys, "--help").split())
    assert "..." not in out.replace("[ARGS]...", "")
    for name in COMMANDS:
        assert " ".join(first_sentences(name).split()) in out


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_help_of_a_group_of_commands_has_whole_sentences(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = shown_by(capsys, name, "--help")
    _, _, commands = out.partition("Commands:\n")
    sentences = re.split(r"^  \w+ +", commands, flags=re.MULTILINE)[1:]
    assert len(sentences) > 1
    for sentence in sentences:
        assert re.search(r"[^.]\.$", " ".join(sentence.split())), sentence
