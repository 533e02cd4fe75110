"""What is said of a URL that is refused: its scheme, host and port, and nothing that may be a secret."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_nats.client.proxy import parse_proxy
from spark_nats.client.servers import parse_servers, without_secrets

SECRET = "s3cr3t"
around = st.text(st.sampled_from("ab:/?#[]=&.%"), max_size=4)
places = st.sampled_from(
    [
        "{}@h",
        "u:{}@h",
        "u:{}",
        "{}@h:x",
        "h/{}",
        "h/p?token={}",
        "h?u=nats://{}",
        "h#{}",
        "h:1/a@{}",
        "h:{}",
        "h/x?a@b={}",
    ]
)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ws://gw/nats?token=s3cr3t", "ws://gw…"),
        ("nats://user:s3cr3thost:4222", "nats://user…"),
        ("nats://user:s3cr3t@host:99999", "nats://host:99999"),
        ("nats://user:s3/cr3t@host", "nats://…"),
        ("ws://gw:80/?next=ws://s3cr3t", "ws://gw:80…"),
        ("[::1]:port", "[::1]…"),
        ("localhost:4222/orders", "localhost:4222…"),
    ],
)
def test_scheme_host_and_port_are_shown(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


@given(st.sampled_from(["", "nats://", "ws://", "http://", "socks5://", "ftp://"]), places, around, around)
def test_no_secret_is_ever_shown(scheme: str, place: str, before: str, after: str) -> None:
    url = scheme + place.format(f"{before}{SECRET}{after}")
    assert SECRET not in without_secrets(url)
    for parse in (parse_servers, parse_proxy):
        assert SECRET not in _refusal(parse, url)


def _refusal(parse: Callable[[str], object], url: str) -> str:
    try:
        parse(url)
    except ValueError as error:
        return str(error)
    return ""
