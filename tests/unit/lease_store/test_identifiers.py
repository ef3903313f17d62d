"""Names: one grammar, parsed once, compared exactly."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.errors import InvalidIdentifier
from dagster_leasehold.lease_store.identifiers import (
    GroupKey,
    GroupName,
    Identifier,
    NodeName,
    ShardId,
    StreamName,
)

HOSTILE = [
    "", " ", "a ", " a", "a\n", "\n", "a\tb", "a\0", "\0", ".", "..", "../../etc/passwd", "/abs",
    "a/b", "a\\b", "-a", "_a", ".a", "a b", "a*b", "a?b", "[a]", "{a}", "a=b", "a:b", "a;b", "a%b",
    "a'b", 'a"b', "a`b", "a|b", "a&b", "a$b", "a#b", "~a", "\xe1", "a\u0301", "\uff41", "\u0661",
    "\xb2", "a\u200b", "\ufeffa", "\u6f22", "\U0001f986", "\x1b[31m", "a" * 65, "a" * 5_000, "%s",
    "{}", "CON:", "a,b", "a+b", "a@b",
]  # fmt: skip
GOOD = ["a", "A", "0", "a.b", "a-b", "a_b", "a..", "0-9_x.Y", "a" * 64, "CON", "None", "1"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_name_outside_the_grammar_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidIdentifier) as caught:
        ShardId(text)
    message = str(caught.value)
    assert message.isprintable()
    assert "shard" in message
    assert len(message) < 300


@pytest.mark.parametrize("text", GOOD)
def test_a_name_of_the_grammar_is_unchanged(text: str) -> None:
    name = ShardId(text)
    assert name == text
    assert isinstance(name, str)
    assert ShardId(name) is name


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    expected = (
        1 <= len(text) <= 64
        and text[0] in allowed
        and all(letter in allowed + "._-" for letter in text)
    )
    try:
        assert Identifier(text) == text
    except InvalidIdentifier:
        assert not expected
    else:
        assert expected


def test_errors_name_the_kind_of_identifier() -> None:
    for kind, word in (
        (StreamName, "stream"),
        (GroupName, "consumer group"),
        (ShardId, "shard"),
        (NodeName, "node"),
    ):
        with pytest.raises(InvalidIdentifier, match=word):
            kind("a b")


def test_a_key_is_shown_as_stream_and_group() -> None:
    key = GroupKey.parse("group", "stream")
    assert str(key) == "stream/group"
    assert (type(key.group), type(key.stream)) == (GroupName, StreamName)
    with pytest.raises(InvalidIdentifier, match="consumer group"):
        GroupKey.parse("a/b", "stream")


def test_names_differ_by_every_byte() -> None:
    assert len({ShardId("a"), ShardId("A"), ShardId("a."), ShardId("a-")}) == 4


def test_a_name_survives_travelling_to_another_process() -> None:
    name = pickle.loads(pickle.dumps(ShardId("a-1")))
    assert (type(name), name) == (ShardId, "a-1")
