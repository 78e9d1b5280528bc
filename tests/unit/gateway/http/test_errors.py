"""The envelope, the headers, and a client's own names in both."""

from __future__ import annotations

import json

import pytest

from lorry import errors
from lorry.errors import FieldViolation, InvalidRequest, LorryError, NotServedYet
from lorry.gateway.http.errors import encode, envelope, headers_of
from lorry.gateway.http.names import Names
from lorry.gateway.http.served import not_served


def leaves(root: type[LorryError] = LorryError) -> list[type[LorryError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in leaves(child))]


@pytest.mark.parametrize("kind", leaves(), ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_has_an_envelope(kind: type[LorryError]) -> None:
    error = json.loads(encode(envelope(kind("x: is wrong", retry_after_s=1.5))))["error"]
    assert set(error) == {"message", "type", "param", "code", "lorry"}
    assert error["lorry"]["reason"] == kind.reason
    assert error["type"]
    spent = kind is errors.TokenBudgetSpent
    assert error["code"] == ("insufficient_quota" if spent else kind.reason)
    found = dict(headers_of(kind("x", retry_after_s=1.5)))
    again = issubclass(kind, errors.Unavailable | errors.QuotaExceeded)
    assert found[b"x-should-retry"] == (b"true" if again else b"false")
    assert found.get(b"retry-after") == (b"2" if again else None)
    assert (b"www-authenticate" in found) == (kind is errors.Unauthenticated)


@pytest.mark.parametrize(("seconds", "header"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.01, b"2"), (90.0, b"90")])
def test_retry_after_is_whole_seconds_and_at_least_one(seconds: float, header: bytes) -> None:
    assert dict(headers_of(errors.Overloaded("x", retry_after_s=seconds)))[b"retry-after"] == header


def test_no_time_to_come_back_where_none_is_known() -> None:
    assert b"retry-after" not in dict(headers_of(errors.Unavailable("x")))


NAMES = Names({"stopping.max_tokens": "max_completion_tokens", "sticky_key": "user"})
PATHS = [
    ("chat.messages[3].role", "messages[3].role"),
    ("chat", "messages"),
    ("token_ids[7]", "prompt[7]"),
    ("prompt", "prompt"),
    ("sampling.top_p", "top_p"),
    ("sampling.logit_bias[5]", "logit_bias[5]"),
    ("stopping.max_tokens", "max_completion_tokens"),
    ("stopping.stop[1]", "stop[1]"),
    ("output.top_logprobs", "top_logprobs"),
    ("sticky_key", "user"),
    ("labels[a]", "labels[a]"),
    ("chatter", "chatter"),
]


@pytest.mark.parametrize(("ours", "theirs"), PATHS)
def test_names(ours: str, theirs: str) -> None:
    assert NAMES.of(ours) == theirs


def test_an_error_is_told_in_the_client_s_words() -> None:
    error = InvalidRequest(
        "sampling.n: too many; lower n, or stopping.max_tokens to 5",
        violations=[FieldViolation("sampling.n", "too many; lower n, or stopping.max_tokens to 5")],
    )
    told = NAMES.told(error)
    assert told.message == "n: too many; lower n, or max_completion_tokens to 5"
    assert [one.field for one in told.violations] == ["n"]
    missing = NAMES.told(not_served(["sampling.typical_p", "priority"]))
    assert isinstance(missing, NotServedYet)
    assert missing.metadata == {"fields": "typical_p, priority"}
    assert "typical_p, priority" in missing.message
    other = errors.Overloaded("x", retry_after_s=1.0)
    assert NAMES.told(other) is other
