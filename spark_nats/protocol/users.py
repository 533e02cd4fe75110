"""A server's description of the user that is logged in: account and permissions (``$SYS.REQ.USER.INFO``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_nats.protocol.documents import integer_at, object_at, parse_limited_object, printable, string_at, strings_at
from spark_nats.protocol.subjects import covers, overlap

USER_INFO = "$SYS.REQ.USER.INFO"  # where the server describes the requesting user, who must be allowed to publish to it


@dataclass(frozen=True, slots=True)
class Permission:
    """The subjects and wildcards that a user may publish or subscribe to."""

    allow: tuple[str, ...] = ()  # everything when empty
    deny: tuple[str, ...] = ()  # what is denied, whatever ``allow`` says

    def allows_all_of(self, subject: str) -> bool:
        """Return whether one entry allows all that a subject or wildcard stands for, and none denies any of it."""
        if any(overlap(entry, subject) for entry in self.deny):
            return False
        return not self.allow or any(covers(entry, subject) for entry in self.allow)


@dataclass(frozen=True, slots=True)
class UserInfo:
    """The user that is logged in."""

    name: str  # the user's name or public key, made printable
    account: str  # the account's name or public key, made printable
    expires: float | None  # seconds after which the login ends; None when it does not
    publish: Permission
    subscribe: Permission  # for subscriptions without a queue group


def parse_user_info(payload: bytes) -> UserInfo:
    """Parse the answer to a request to :data:`USER_INFO`; ValueError when it is something else."""
    answer = parse_limited_object(payload)
    data = object_at(answer, "data")
    # With JWTs, users and accounts are public keys, and most also have names.
    return UserInfo(
        name=printable(string_at(data, "user_name" if data.get("user_name") else "user")),
        account=printable(string_at(data, "account_name" if data.get("account_name") else "account")),
        expires=integer_at(data, "expires") / 1e9 if data.get("expires") else None,
        publish=_permission(answer, "publish"),
        subscribe=_permission(answer, "subscribe"),
    )


def _permission(answer: dict[str, Any], which: str) -> Permission:
    allow, deny = (strings_at(answer, "data", "permissions", which, list_) for list_ in ("allow", "deny"))
    # An entry with a space is about subscriptions in the queue group after the space.
    alone = tuple(entry for entry in allow if " " not in entry)
    if allow and not alone:
        return Permission(deny=(">",))  # nothing is allowed without a queue group
    return Permission(alone, tuple(entry for entry in deny if " " not in entry))
