"""Contexts of the nats command line, as they become options."""

import json
from pathlib import Path

import pytest

from spark_nats.client import Credentials
from spark_nats.client.auth import parse_creds
from spark_nats.errors import OptionError
from spark_nats.kinds.queries import parse_options, parse_read_options, parse_write_options
from spark_nats.options.settings import Settings
from tests.certificates import Certificates
from tests.operator_mode import Key, OperatorMode


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Write a context named `work`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "nats" / "context" / "work.json"
    path.parent.mkdir(parents=True)

    def write(**fields):
        path.write_text(json.dumps(fields))
        return path

    return write


def of_work(**options) -> Settings:
    return parse_options({"context": "work", **options})


def test_a_context_says_where_and_as_whom_to_connect(context):
    context(
        name="work",
        description="ours",
        url="tls://one:1,tls://two",
        user="ann",
        password="s3cret",
        tls_first=True,
        inbox_prefix="_INBOX.ann",
        jetstream_domain="hub",
        token="",
        nsc="",
    )
    settings = of_work()
    assert [str(server) for server in settings.connection.servers] == ["tls://one:1", "tls://two:4222"]
    assert settings.connection.credentials == Credentials("ann", "s3cret")
    assert settings.connection.tls.handshake_first
    assert settings.connection.inbox_prefix == "_INBOX.ann"
    assert settings.api_prefix == "$JS.hub.API"
    assert "s3cret" not in repr(settings)


def test_a_context_may_have_its_password_in_the_url(context):
    context(url="nats://ann:s3cret@one")
    (server,) = of_work().connection.servers
    assert server.credentials == Credentials("ann", "s3cret")
    assert "s3cret" not in repr(of_work())


def test_a_context_names_an_nkey_or_a_creds_file(context, tmp_path):
    key = Key()
    context(nkey=str(key.write(tmp_path / "user.nk")), jetstream_api_prefix="from.hub")
    assert of_work().connection.credentials == Credentials(nkey_seed=key.seed)
    assert of_work().api_prefix == "from.hub"
    context(creds=str(OperatorMode().creds(tmp_path / "user.creds", key)))
    credentials = of_work().connection.credentials
    assert credentials.nkey_seed == key.seed
    assert credentials.jwt


def test_a_context_is_found_by_its_path_too(context):
    path = context(token="t0ken")
    assert parse_options({"context": str(path)}).connection.credentials == Credentials(token="t0ken")


def test_without_a_configuration_directory_contexts_are_in_the_home_directory(context, monkeypatch, tmp_path):
    path = context(token="t0ken")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config" / "nats").mkdir(parents=True)
    path.parent.rename(tmp_path / ".config" / "nats" / "context")
    assert of_work().connection.credentials == Credentials(token="t0ken")


def test_options_stand_above_the_context(context):
    context(url="nats://eve:hers@one", user="ann", password="s3cret", jetstream_domain="hub", inbox_prefix="_I")
    settings = of_work(token="t0ken", apiPrefix="from.here")
    assert settings.connection.credentials == Credentials(token="t0ken")
    assert not settings.connection.servers[0].credentials
    assert settings.connection.inbox_prefix == "_I"
    assert settings.api_prefix == "from.here"
    assert str(of_work(servers="nats://other").connection.servers[0]) == "nats://other:4222"
    assert of_work(inboxPrefix="_MINE").connection.inbox_prefix == "_MINE"


def test_texts_stand_above_the_files_of_a_context(context, tmp_path):
    ours = Certificates(tmp_path / "certificates")
    client = ours.client("ann@example.com")
    creds = OperatorMode().creds(tmp_path / "user.creds").read_text()
    context(creds="/none", ca="/none", cert="/none", key="/none")
    certificate, key = (Path(client[name]).read_text() for name in ("tlsCertFile", "tlsKeyFile"))
    ca = ours.ca.read_text()
    connection = of_work(credentialsSecret=creds, tlsCaPem=ca, tlsCertPem=certificate, tlsKeySecret=key).connection
    assert connection.credentials == parse_creds(creds)
    assert (connection.tls.ca, connection.tls.certificate, connection.tls.key) == (ca, certificate, key)


def test_other_servers_keep_the_contexts_login_and_its_wish_for_tls(context):
    context(url="tls://ann:s3cret@one")
    (server,) = of_work(servers="nats://other").connection.servers
    assert (str(server), server.credentials) == ("tls://other:4222", Credentials("ann", "s3cret"))
    (server,) = of_work(servers="nats://other", token="t0ken").connection.servers
    assert (str(server), bool(server.credentials)) == ("tls://other:4222", False)
    context(url="nats://one", token="t0ken")
    assert str(of_work(servers="nats://other").connection.servers[0]) == "nats://other:4222"


def test_what_a_context_says_of_jetstream_does_not_hinder_core_nats(context):
    context(jetstream_domain="hub")
    assert parse_read_options({"context": "work", "subject": "a.>"}, streaming=False).subjects == ("a.>",)


@pytest.mark.parametrize("field", ["nsc", "user_jwt", "socks_proxy", "windows_cert_store", "unheard_of"])
def test_a_field_that_is_not_supported_is_named(context, field):
    context(url="nats://one", **{field: "s3cret"})
    with pytest.raises(OptionError, match=f"'work', which has the field '{field}', which is unsupported") as raised:
        of_work()
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"token": ["s3cret"]}, "whose field 'token' is a list"),
        ({"url": "http://u:s3cret@one"}, "option 'context' sets 'servers', which has the unsupported scheme 'http'"),
        ({"creds": "/no/such.creds"}, "sets 'credentialsFile', which is '/no/such.creds', which cannot be read"),
        ({"token": "s3cret", "user": "u"}, "options 'user' and 'token' contradict each other"),
        ({"password": "s3cret"}, "option 'password' needs the option 'user'"),
        ({"key": __file__}, "sets 'tlsKeyFile', which is .*, which is not a file in PEM format"),
    ],
)
def test_a_context_that_says_nonsense_is_refused(context, fields, words):
    context(**fields)
    with pytest.raises(OptionError, match=words) as raised:
        of_work()
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("play", "names no context: there are no contexts in '.*/nats/context'$"),
        ("../work", "cannot be read"),
        ("..", "names no context"),
        ("a b", "names no context"),
        ("/no/such.json", "is '/no/such.json', which cannot be read: No such file"),
        ("~nobody-of-that-name/x.json", "cannot be read"),
        ('{"token": "s3cret/"}', "must be the name of a context or the path of its file; its value, which may be"),
    ],
)
def test_a_context_that_is_not_there_is_said(context, name, words):
    with pytest.raises(OptionError, match=words):
        parse_options({"context": name})


def test_a_context_that_may_not_be_read_is_said(context, tmp_path):
    path = context()
    path.unlink()
    path.mkdir()  # root may read each file
    with pytest.raises(OptionError, match="option 'context' is 'work', which cannot be read: Is a directory"):
        of_work()


@pytest.mark.parametrize("content", [b"s3cret", b"[" * 100_000, b'"s3cret"', b"s3cret\xff", b'{"token": "\\ud800"}'])
def test_a_context_that_is_no_json_is_said_without_its_content(context, content):
    path = context()
    path.write_bytes(content)
    with pytest.raises(OptionError, match="holds no JSON object") as raised:
        of_work()
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("options", [{"stream": "S"}, {"subject": "a", "badRows": "stream", "badRowsStream": "BAD"}])
def test_the_domain_of_a_context_is_that_of_every_stream_that_is_asked_for(options, tmp_path):
    """Also of the one for bad rows, where the others go to core NATS."""
    context = tmp_path / "context.json"
    context.write_text('{"url": "nats://localhost", "jetstream_domain": "hub"}')
    for streaming in (False, True):
        assert parse_write_options({"context": str(context), **options}, streaming).api_prefix == "$JS.hub.API"
