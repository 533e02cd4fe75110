"""What a server says about the user that is logged in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_nats.protocol.users import Permission, parse_user_info


def info(**data: Any) -> Any:
    return parse_user_info(json.dumps({"server": {}, "data": {"user": "ann", "account": "A", **data}}).encode())


def test_a_user_without_permissions_may_do_everything() -> None:
    user = info()
    assert (user.name, user.account, user.expires) == ("ann", "A", None)
    assert user.publish.allows_all_of("$JS.API.>")
    assert user.subscribe.allows_all_of(">")


def test_users_and_accounts_are_called_by_their_names_and_a_login_that_ends_says_when() -> None:
    user = info(user="UABCDE", user_name="Ann", account="ABCDEF", account_name="Sales", expires=90_000_000_000)
    assert (user.name, user.account, user.expires) == ("Ann", "Sales", 90.0)


@pytest.mark.parametrize(
    ("permission", "subject", "included"),
    [
        (Permission(), "a.>", True),
        (Permission(("a.>",)), "a.b.>", True),
        (Permission(("a.*",)), "a.>", False),
        (Permission(("a.b", "a.c")), "a.c", True),
        (Permission((), ("a.b",)), "a.>", False),
        (Permission((), ("a.b",)), "a.c", True),
        (Permission(("a.>",), ("a.b.*",)), "a.b.c", False),
    ],
)
def test_what_is_denied_is_not_included_whatever_is_allowed(
    permission: Permission, subject: str, included: bool
) -> None:
    assert permission.allows_all_of(subject) is included


def test_what_is_allowed_in_queue_groups_only_is_not_allowed_without() -> None:
    user = info(permissions={"publish": {}, "subscribe": {"allow": ["a.> workers"], "deny": ["b.> workers"]}})
    assert user.publish == Permission()
    assert not user.subscribe.allows_all_of("a.x")
    user = info(permissions={"subscribe": {"allow": ["a.> workers", "b.>"], "deny": ["b.> workers"]}})
    assert not user.subscribe.allows_all_of("a.x")
    assert user.subscribe.allows_all_of("b.x")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b'{"data": []}',
        b'{"data": {"user": "ann"}}',
        b'{"data": {"user": 1, "account": "A"}}',
        b'{"data": {"user": "ann", "account": "A", "account_name": 1}}',
        b'{"data": {"user": "ann", "account": "A", "expires": -1}}',
        b'{"data": {"user": "ann", "account": "A", "permissions": {"publish": {"allow": "x"}}}}',
        b'{"error": {"code": 503}}',
    ],
)
def test_an_answer_that_is_something_else_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError):
        parse_user_info(answer)
