"""Every way a server lets a client in: right credentials read and write, wrong ones are refused once and for all."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_nats.client.auth import parse_creds
from spark_nats.embedded import NatsServer
from tests.certificates import Certificates
from tests.integration.support import (
    Query,
    error_of,
    finish,
    numbered_rows,
    read,
    sentence_of,
    sequences_of,
    source,
    stream_reader,
    write,
)
from tests.nats_py import wait_until
from tests.operator_mode import Key, OperatorMode
from tests.servers import ServerFactory

pytestmark = pytest.mark.timeout(150)

BCRYPT = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"  # of U*U, from crypt_blowfish's own tests


@dataclass
class Way:
    """A server's configuration, the options that it lets in, and some that it does not, with the reason for that."""

    config: str
    right: dict[str, str]
    wrong: dict[str, str]
    reason: str
    scheme: str = "nats"
    secrets: list[str] = field(default_factory=list)

    def server(self, server_factory: ServerFactory) -> NatsServer:
        server = server_factory(self.config)
        servers = server.url.replace("nats", self.scheme)
        self.right = {"servers": servers, **self.right}
        self.wrong = {"servers": servers, **self.wrong}
        return server


VIOLATION = "refused the credentials: Authorization Violation; check the options"
USERS = 'authorization { users: [ {user: ann, password: "annsOwn"}, {user: bob, password: "bobsOwn"} ] }'


def with_token(directory: Path) -> Way:
    return Way('authorization { token: "t0ps3cret" }', {"token": "t0ps3cret"}, {"token": "wr0ngone"}, VIOLATION)


def with_a_password(directory: Path) -> Way:
    return Way(USERS, {"user": "ann", "password": "annsOwn"}, {"user": "ann", "password": "bobsOwn"}, VIOLATION)


def with_a_password_that_the_server_keeps_hashed(directory: Path) -> Way:
    config = f'authorization {{ user: ann, password: "{BCRYPT}" }}'
    return Way(config, {"user": "ann", "password": "U*U"}, {"user": "ann", "password": BCRYPT}, VIOLATION)


def with_tls(directory: Path) -> Way:
    ours, other = Certificates(directory), Certificates(directory / "other")
    reason = (
        "certificate cannot be verified for the name '127.0.0.1': unable to get local issuer certificate); check the"
    )
    return Way(ours.config(), {"tlsCaFile": str(ours.ca)}, {"tlsCaFile": str(other.ca)}, reason)


def with_a_tls_url(directory: Path) -> Way:
    way = with_tls(directory)
    way.scheme = "tls"
    way.wrong = {}
    return way


def with_another_server_name(directory: Path) -> Way:
    ours = Certificates(directory)
    trust = {"tlsCaFile": str(ours.ca)}
    reason = "certificate cannot be verified for the name '127.0.0.1': IP address mismatch"
    return Way(ours.config("nats.example.com"), {**trust, "tlsServerName": "nats.example.com"}, trust, reason)


def with_mutual_tls(directory: Path) -> Way:
    ours, other = Certificates(directory), Certificates(directory / "other")
    trust = {"tlsCaFile": str(ours.ca)}
    right, wrong = {**trust, **ours.client("ann@example.com")}, {**trust, **other.client("ann@example.com")}
    reason = "refused the client's certificate: [SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca"
    return Way(ours.config("127.0.0.1", "verify: true"), right, wrong, reason)


def with_mutual_tls_but_no_certificate(directory: Path) -> Way:
    way = with_mutual_tls(directory)
    way.wrong = {"tlsCaFile": way.right["tlsCaFile"]}
    way.reason = "requires a client certificate); check the options 'tlsCertFile' and 'tlsKeyFile'"
    return way


def with_a_certificate_that_names_the_user(directory: Path) -> Way:
    ours = Certificates(directory)
    users = 'authorization { users: [ {user: "ann@example.com"} ] }'
    trust = {"tlsCaFile": str(ours.ca)}
    right, wrong = {**trust, **ours.client("ann@example.com")}, {**trust, **ours.client("eve@example.com")}
    return Way(ours.config("127.0.0.1", "verify_and_map: true") + users, right, wrong, VIOLATION)


def with_tls_first(directory: Path) -> Way:
    ours = Certificates(directory)
    trust = {"tlsCaFile": str(ours.ca)}
    reason = (
        "(4222 unless it is configured; 8222 is for monitoring), and does it expect TLS first, or a WebSocket "
        "(ws:// or wss://)?); "
        "check the option 'tlsHandshakeFirst'"
    )
    config = ours.config("127.0.0.1", "handshake_first: true")
    wrong = {**trust, "connectTimeout": "300ms"}  # for which the server says nothing
    return Way(config, {**trust, "tlsHandshakeFirst": "true"}, wrong, reason)


def with_tls_first_that_the_server_does_not_do(directory: Path) -> Way:
    way = with_tls(directory)
    way.wrong = {**way.right, "tlsHandshakeFirst": "true"}
    way.reason = "the TLS handshake failed: "
    return way


def with_tls_that_the_server_does_not_offer(directory: Path) -> Way:
    way = with_a_password(directory)
    way.wrong = {**way.right, "tlsServerName": "127.0.0.1"}
    way.reason = "does not offer TLS, but TLS is required; no credentials were sent"
    return way


def with_an_nkey(directory: Path) -> Way:
    key, other = Key(), Key()
    return Way(
        f"authorization {{ users: [ {{nkey: {key.public}}} ] }}",
        {"nkeySeedSecret": key.seed},
        {"nkeySeedSecret": other.seed},
        VIOLATION,
    )


def with_an_nkey_file(directory: Path) -> Way:
    key, other = Key(), Key()
    return Way(
        f"authorization {{ users: [ {{nkey: {key.public}}} ] }}",
        {"nkeySeedFile": str(key.write(directory / "right.nk"))},
        {"nkeySeedFile": str(other.write(directory / "wrong.nk"))},
        VIOLATION,
        secrets=[key.seed, other.seed],
    )


def with_an_nkey_where_passwords_are_asked_for(directory: Path) -> Way:
    way = with_a_password(directory)
    way.wrong = {"nkeySeedSecret": Key().seed}
    way.reason = "the server sent no nonce to sign, so it accepts neither nkeys nor JWTs"
    return way


def with_credentials_of_an_account(directory: Path) -> Way:
    ours, other = OperatorMode(), OperatorMode()
    right, wrong = ours.creds(directory / "right.creds"), other.creds(directory / "wrong.creds")
    secrets = [secret for path in (right, wrong) for secret in vars_of(path)]
    return Way(
        ours.config, {"credentialsFile": str(right)}, {"credentialsFile": str(wrong)}, VIOLATION, "nats", secrets
    )


def with_a_jwt_and_a_seed(directory: Path) -> Way:
    ours, other = OperatorMode(), OperatorMode()
    right, wrong = (parse_creds(mode.creds(directory / "any.creds").read_text()) for mode in (ours, other))
    seeds, jwts = (right.nkey_seed or "", wrong.nkey_seed or ""), (right.jwt or "", wrong.jwt or "")
    return Way(
        ours.config,
        {"nkeySeedSecret": seeds[0], "jwtSecret": jwts[0]},
        {"nkeySeedSecret": seeds[1], "jwtSecret": jwts[1]},
        VIOLATION,
        secrets=[*seeds, *jwts],
    )


def with_credentials_and_a_token_that_nobody_asks_for(directory: Path) -> Way:
    way = with_credentials_of_an_account(directory)
    way.right["token"] = way.wrong["token"] = "t0ps3cret"
    way.secrets.append("t0ps3cret")
    return way


def with_texts_instead_of_files(directory: Path) -> Way:
    ours, mode = Certificates(directory), OperatorMode()
    client = ours.client("ann@example.com")
    right, wrong = mode.creds(directory / "right.creds"), OperatorMode().creds(directory / "wrong.creds")
    tls = {
        "tlsCaPem": ours.ca.read_text(),
        "tlsCertPem": Path(client["tlsCertFile"]).read_text(),
        "tlsKeySecret": Path(client["tlsKeyFile"]).read_text().replace("\n", "\\n"),
    }
    return Way(
        ours.config("127.0.0.1", "verify: true") + mode.config,
        {**tls, "credentialsSecret": right.read_text()},
        {**tls, "credentialsSecret": wrong.read_text()},
        VIOLATION,
        secrets=[*vars_of(right), *vars_of(wrong)],
    )


def with_a_context(directory: Path) -> Way:
    ours, mode = Certificates(directory), OperatorMode()
    fields = {"creds": str(mode.creds(directory / "right.creds")), "ca": str(ours.ca), "description": "ours"}
    right, wrong = directory / "right.json", directory / "wrong.json"
    right.write_text(json.dumps(fields))
    wrong.write_text(json.dumps({**fields, "creds": str(OperatorMode().creds(directory / "wrong.creds"))}))
    return Way(ours.config() + mode.config, {"context": str(right)}, {"context": str(wrong)}, VIOLATION)


def vars_of(creds: Path) -> tuple[str, str]:
    """The secrets in a `.creds` file."""
    found = parse_creds(creds.read_text())
    assert found.jwt
    assert found.nkey_seed
    return found.jwt, found.nkey_seed


WAYS: list[Callable[[Path], Way]] = [
    with_token,
    with_a_password,
    with_a_password_that_the_server_keeps_hashed,
    with_tls,
    with_a_tls_url,
    with_another_server_name,
    with_mutual_tls,
    with_a_certificate_that_names_the_user,
    with_tls_first,
    with_an_nkey,
    with_an_nkey_file,
    with_credentials_of_an_account,
    with_a_jwt_and_a_seed,
    with_credentials_and_a_token_that_nobody_asks_for,
    with_texts_instead_of_files,
    with_a_context,
]
WRONG_WAYS = [
    *WAYS,
    with_mutual_tls_but_no_certificate,
    with_tls_first_that_the_server_does_not_do,
    with_tls_that_the_server_does_not_offer,
    with_an_nkey_where_passwords_are_asked_for,
]
LISTEN = '{"subjects": ["S.*"]}'


@pytest.mark.parametrize("build", WAYS, ids=lambda build: build.__name__)
def test_right_credentials_read_and_write_in_batch_and_in_streaming(
    server_factory: ServerFactory, build: Callable[[Path], Way], tmp_path: Path
) -> None:
    way = build(tmp_path)
    way.server(server_factory)
    login = {name: value for name, value in way.right.items() if name != "servers"}
    servers, stream = way.right["servers"], {**login, "stream": "S"}
    write(servers, numbered_rows("S", range(10)), createStream=LISTEN, **stream)
    assert len(read(servers, **stream)) == 10
    query = Query(stream_reader(servers, startingOffsets="earliest", **stream))
    assert sequences_of(query.rows(10)) == list(range(1, 11))
    into = source(servers, **login, stream="COPY", createStream='{"subjects": ["COPY.*"]}', deduplicate=False)
    rows = numbered_rows("COPY", range(10))
    writer = into.streamWriter(from_arrow_schema(rows.schema), overwrite=False)
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter(rows.to_batches()))], 0)
    assert len(read(servers, **login, stream="COPY")) == 10


@pytest.mark.parametrize("build", [with_texts_instead_of_files, with_a_context], ids=lambda build: build.__name__)
def test_right_credentials_read_and_write_through_spark(
    spark: SparkSession, server_factory: ServerFactory, build: Callable[[Path], Way], tmp_path: Path
) -> None:
    way = build(tmp_path)
    way.server(server_factory)
    stream = {**way.right, "stream": "S"}
    rows = spark.range(10).selectExpr("concat('S.', id) AS subject", "string(id) AS payload")
    rows.write.format("nats").options(createStream=LISTEN, **stream).mode("append").save()
    copied = (
        spark.readStream.format("nats").options(startingOffsets="earliest", **stream).load()
        .selectExpr("concat('COPY.', sequence) AS subject", "payload")
        .writeStream.format("nats").trigger(availableNow=True)
        .options(**way.right, stream="COPY", createStream='{"subjects": ["COPY.*"]}')
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )  # fmt: skip
    finish(copied.start())
    assert spark.read.format("nats").options(**way.right, stream="COPY").load().count() == 10


@pytest.mark.parametrize("build", WRONG_WAYS, ids=lambda build: build.__name__)
def test_wrong_credentials_are_refused_with_the_reason_and_not_repeated(
    server_factory: ServerFactory, build: Callable[[Path], Way], tmp_path: Path
) -> None:
    way = build(tmp_path)
    server = way.server(server_factory)
    login = {**way.wrong, "stream": "S"}
    servers = login.pop("servers")
    actions = (
        lambda: write(servers, numbered_rows("S", range(8)), **login),
        lambda: Query(stream_reader(servers, retryTimeout="0s", **login)).micro_batch(),
        lambda: read(servers, **login),
    )
    for action in actions:
        error = sentence_of(action)
        assert way.reason in error
        for secret in [*way.secrets, *(way.wrong.get(name) for name in ("password", "token", "nkeySeedSecret"))]:
            assert not secret or secret not in error
    assert refusals(server) <= len(actions)


def test_wrong_credentials_are_refused_once_and_for_all_through_spark(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path
) -> None:
    way = with_a_password(tmp_path)
    server = way.server(server_factory)
    right, wrong = {**way.right, "stream": "S"}, {**way.wrong, "stream": "S"}
    rows = spark.range(8).selectExpr("concat('S.', id) AS subject", "string(id) AS payload").repartition(8)
    rows.write.format("nats").options(createStream=LISTEN, **right).mode("append").save()
    core = spark.read.format("nats").options(**way.wrong, subject="elsewhere", minPartitions=8).load()
    streaming = spark.readStream.format("nats").options(**wrong).load().writeStream.format("noop")
    source = spark.readStream.format("nats").options(startingOffsets="earliest", **right).load()
    writer = source.select("subject", "payload").writeStream.format("nats").options(**wrong)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    actions = (
        spark.read.format("nats").options(**wrong).load().collect,
        rows.write.format("nats").options(**wrong).mode("append").save,
        core.collect,
        lambda: finish(streaming.start()),
        lambda: finish(writer.start()),
    )
    for count, action in enumerate(actions, 1):
        error = error_of(action)
        assert VIOLATION in error
        assert way.wrong["password"] not in error
        wait_until(lambda: refusals(server) >= count)  # noqa: B023 - used in its own turn
        assert refusals(server) == count


def refusals(server: NatsServer) -> int:
    """How many clients the server has not let in."""
    return len(re.findall(r"authentication error|TLS handshake error", server.log_path.read_text()))
