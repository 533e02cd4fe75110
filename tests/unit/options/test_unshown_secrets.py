"""No error shows a secret that stands where a file or a context should be named, in whatever disguise."""

import base64
import contextlib
import io
import json
import traceback
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats import cli
from spark_nats.errors import OptionError
from spark_nats.kinds.queries import parse_options
from spark_nats.options.files import may_file_name_be_shown
from tests.certificates import Certificates
from tests.operator_mode import Key, OperatorMode

FILES = ("nkeySeedFile", "credentialsFile", "tlsCaFile", "tlsCertFile", "tlsKeyFile")
FIELDS = ("creds", "nkey", "cert", "key", "ca", "token", "password", "user_jwt", "user_seed", "nsc", "unheard_of")
PREFIXES = ("inbox_prefix", "jetstream_domain", "jetstream_api_prefix")


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


DISGUISES = {
    "as it is": lambda text: text,
    "a URI": lambda text: f"data:;base64,{in_base64(text)}",
    "a URI with a type": lambda text: f"DATA:text/plain;base64,{in_base64(text)}",
    "a URI that is not in base64": lambda text: f"data:,{text}",
    "a URI that is cut off": lambda text: f"data:;base64,{in_base64(text)[:-1]}",
    "base64": in_base64,
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "base64 from one byte on": lambda text: in_base64(f"x{text}"),
    "base64 of base64": lambda text: in_base64(in_base64(text)),
    "hex": lambda text: text.encode().hex(),
    "reversed": lambda text: text[::-1],
    "a JSON object": lambda text: json.dumps({"nkey": text}),
    "a list": lambda text: json.dumps([text]),
    "a context in base64": lambda text: in_base64(json.dumps({"url": "nats://one", "creds": text})),
    "the name of a variable": lambda text: f"env://{text}",
    "a variable in a path": lambda text: f"${{{text}}}",
    "a file's URI": lambda text: f"file://{text}",
    "a place of the command line": lambda text: f"op://vault/{text}",
    "another place of the command line": lambda text: f"nsc://{text}",
    "an unknown place": lambda text: f"vault://{text}",
    "behind a folder": lambda text: f"/etc/{text}",
    "with an ending": lambda text: f"{text}.creds",
    "behind a folder, with an ending": lambda text: f"/etc/ssl/{text}.pem",
    "named as a context's file": lambda text: f"{text}.json",
}


def seeds() -> st.SearchStrategy[str]:
    return st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", min_size=56, max_size=56).map(lambda rest: f"SU{rest}")


def passwords() -> st.SearchStrategy[str]:
    """Texts as programs make them: not words alone, which a file's name may be."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
    made = st.text(letters, min_size=20, max_size=80)
    return made.filter(lambda text: sum(map(text.count, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")) > 7)


def tokens() -> st.SearchStrategy[str]:
    return st.binary(min_size=16, max_size=64).map(lambda data: base64.b64encode(data).decode())


def windows(text: str) -> set[str]:
    return {text[i : i + 8] for i in range(len(text) - 7)}


def all_that_is_said(error: BaseException | None) -> str:
    """Return what any tool may print of an error: also of those in whose place it was raised."""
    said = "".join(traceback.format_exception(error))
    while error is not None:
        said += f"{error}\n{error!r} {vars(error)} {getattr(error, 'filename', '')} {getattr(error, 'object', '')}"
        error = error.__cause__ or error.__context__
    return said


def said_of(options: dict[str, str]) -> str:
    try:
        return repr(parse_options(options))
    except OptionError as error:
        return all_that_is_said(error)


def shown(said: str, secret: str) -> set[str]:
    return {
        part for form in (secret, in_base64(secret), secret.encode().hex()) for part in windows(form) if part in said
    }


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("config")
        patch.setenv("XDG_CONFIG_HOME", str(directory))
        (directory / "nats" / "context").mkdir(parents=True)
        yield directory / "nats" / "context"


SECRETS = st.one_of(seeds(), passwords(), tokens())
AS = st.sampled_from(sorted(DISGUISES))


@given(secret=SECRETS, disguise=AS, name=st.sampled_from([*FILES, "context"]))
@example("SUAMK2FG4MI6UE3ACF3FK3OIQBCEIEZV7NSWFFEW63UXMRLFM2XLAXK4GY", "a URI", "nkeySeedFile")
def test_no_option_that_names_a_file_shows_a_secret_in_its_place(contexts, secret, disguise, name):
    certificate = {"tlsCertPem": "x"} if name == "tlsKeyFile" else {}
    assert not shown(said_of({name: DISGUISES[disguise](secret), **certificate}), secret)


@given(secret=SECRETS, disguise=AS, field=st.sampled_from([*FIELDS, *PREFIXES]))
def test_no_field_of_a_context_shows_a_secret(contexts, secret, disguise, field):
    value = DISGUISES[disguise](secret)
    for fields in ({"url": "nats://one", "user": "ann", field: value}, {field: value}, {value: secret}):
        (contexts / "work.json").write_text(json.dumps(fields))
        said = said_of({"context": "work"})
        taken = field in PREFIXES and said.startswith("Settings(")  # it may be a prefix, which is no secret
        assert taken or not shown(said, secret)


@settings(max_examples=30)
@given(secret=SECRETS, disguise=AS, name=st.sampled_from([*FILES, "context"]))
def test_the_command_line_shows_no_secret_that_stands_for_a_file(contexts, secret, disguise, name):
    value = DISGUISES[disguise](secret)
    for command in (["check"], ["lag", "--checkpoint", "/none"]):
        for arguments in ([f"--{name}={value}"], [f"--{name}", value], [f"--{name}", "x", value]):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
                assert cli.main([*command, *arguments]) == 2
            assert not shown(out.getvalue(), secret), arguments


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        ("/etc/nats/spark.creds", True),
        ("/etc/nats/spark_user", True),
        ("~/.nats/user.nk", True),
        ("certs/ca-2026.pem", True),
        ("/no/such.creds", True),
        (__file__, True),
        ("/no/file", False),  # a password may look like this
        ("hunter2", False),
        ("correct-horse-battery-staple", False),
        ("/etc/SUAMK2FG4MI6UE3ACF3FK3OIQBCEIEZV7NSWFFEW63UXMRLFM2XLAXK4GY.nk", False),
        ("/etc/bm90IGEga2V5", False),
        ("/etc/deadbeef01234567.key", False),
        ("/etc/" + "nats/" * 40 + "user.creds", False),  # long
        ("a\0b", False),
        ("", False),
        (".", True),
    ],
)
def test_a_short_path_of_words_is_shown(name, harmless):
    assert may_file_name_be_shown(name) is harmless


@pytest.mark.promise("login#place-data", "login#place-env", "login#place-file")
def test_a_context_that_has_its_secrets_inside_logs_in(contexts, tmp_path, monkeypatch):
    """As the command line's library writes them when it embeds, and as it reads them from elsewhere."""
    key = Key()
    creds = OperatorMode().creds(tmp_path / "user.creds", key).read_text()
    monkeypatch.setenv("SPARK_TEST_SECRET", f"{key.seed}\n")
    monkeypatch.setenv("SPARK_TEST_FOLDER", str(tmp_path))
    (tmp_path / "word").write_text("s3cret\n")

    def of_context(**fields):
        (contexts / "work.json").write_text(json.dumps(fields))
        return parse_options({"context": "work"}).connection

    def login(**fields):
        return of_context(**fields).credentials

    assert login(creds=f"data:;base64,{in_base64(creds)}").nkey_seed == key.seed
    assert login(creds=f"data:application/octet-stream;base64,{in_base64(creds)}").jwt
    assert login(nkey=f"data:;base64,{in_base64(key.seed)}").nkey_seed == key.seed
    assert login(nkey="env://SPARK_TEST_SECRET").nkey_seed == key.seed
    assert login(nkey="ENV://SPARK_TEST_SECRET").nkey_seed == key.seed
    assert login(creds=f"file://{tmp_path}/user.creds").nkey_seed == key.seed
    assert login(creds="$SPARK_TEST_FOLDER/user.creds").nkey_seed == key.seed
    assert login(creds="file://${SPARK_TEST_FOLDER}/user.creds").nkey_seed == key.seed
    assert login(token="env://SPARK_TEST_SECRET").token == key.seed
    assert login(user="ann", password=f"data:;base64,{in_base64('s3cret')}").password == "s3cret"
    assert login(user="ann", password=f"file://{tmp_path}/word").password == "s3cret"
    assert login(user="ann", password="a$pass:word").password == "a$pass:word"
    ours = Certificates(tmp_path / "certificates")
    client = ours.client("ann@example.com")
    texts = {"ca": ours.ca, "cert": Path(client["tlsCertFile"]), "key": Path(client["tlsKeyFile"])}
    tls = of_context(**{name: f"data:;base64,{in_base64(path.read_text())}" for name, path in texts.items()}).tls
    assert tls == of_context(**{name: str(path) for name, path in texts.items()}).tls


@pytest.mark.promise("login#place-command-line")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"creds": "op://vault/item/field"},
            "is 'work', whose field 'creds' begins with op://, a place from which only",
        ),
        ({"nkey": "nsc://operator/account/user"}, "whose field 'nkey' begins with nsc://, a place from which only the"),
        ({"creds": "env://NO_SUCH"}, "whose field 'creds' begins with env:// and names no variable that is set"),
        ({"nkey": "data:;base64,?"}, "whose field 'nkey' begins with data: and holds no text in base64"),
        ({"nkey": "data:,SUA"}, "whose field 'nkey' begins with data: and holds no text in base64"),
        ({"creds": "data:;base64,AAAA"}, "sets 'credentialsSecret', which holds no NATS USER JWT"),
        ({"creds": "file:///no/such.creds"}, "sets 'credentialsFile', which is '/no/such.creds', which cannot be read"),
        ({"token": "file:///no/such.pem"}, "whose field 'token' is '/no/such.pem', which cannot be read"),
        ({"inbox_prefix": "a b"}, "sets 'inboxPrefix', which is what is not shown here; it contains white space"),
    ],
)
def test_a_place_of_a_secret_that_cannot_be_read_is_said(contexts, fields, words):
    (contexts / "work.json").write_text(json.dumps(fields))
    with pytest.raises(OptionError) as raised:
        parse_options({"context": "work"})
    assert words in str(raised.value)


def test_the_contexts_that_there_are_are_named_for_one_that_is_not(contexts):
    (contexts / "work.json").write_text("{}")
    (contexts / "play.json").write_text("{}")
    said = said_of({"context": "pray"})
    assert f"names none of the contexts in '{contexts}', which are 'play', 'work'" in said
    assert "pray" not in said
