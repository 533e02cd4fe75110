"""Seeds, .creds files and certificates: what is taken, and that what is not is said without what it holds."""

import base64
import pickle
import re
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from spark_nats.client import Credentials, TlsOptions
from spark_nats.client.auth import parse_creds, parse_seed
from spark_nats.client.tls import make_tls_context
from spark_nats.errors import AuthorizationError, OptionError
from spark_nats.kinds.queries import parse_options
from spark_nats.protocol.control import ConnectOptions, ServerInfo
from tests.operator_mode import ACCOUNT, Key, OperatorMode


def test_the_nonce_is_signed_and_the_seed_not_sent():
    key = Key()
    hello = Credentials(nkey_seed=key.seed).add_to(ConnectOptions(), ServerInfo(nonce="abc"))
    assert (hello.nkey, bool(hello.sig), hello.jwt) == (key.public, True, None)
    assert key.seed not in hello.encode().decode()


def test_with_a_jwt_the_key_is_not_named(tmp_path):
    credentials = parse_creds(OperatorMode().creds(tmp_path / "user.creds").read_text())
    hello = credentials.add_to(ConnectOptions(), ServerInfo(nonce="abc"))
    assert (hello.nkey, bool(hello.sig), hello.jwt) == (None, True, credentials.jwt)
    assert credentials.nkey_seed not in hello.encode().decode()


def test_who_is_not_asked_to_sign_sends_nothing():
    credentials = Credentials(nkey_seed=Key().seed, jwt="ey")
    assert credentials.add_to(ConnectOptions(), ServerInfo()) == ConnectOptions()
    with pytest.raises(AuthorizationError, match="the server sent no nonce to sign"):
        credentials.add_to(ConnectOptions(), ServerInfo(auth_required=True))


def test_secrets_are_in_no_representation(tmp_path):
    secret = Key().seed
    kept = [
        Credentials(user="me", password="s3cret"),
        Credentials(token="s3cret"),
        Credentials(nkey_seed=secret, jwt="s3cret"),
        Credentials(nkey_seed=secret).add_to(ConnectOptions(), ServerInfo(nonce="s3cret")),
        TlsOptions(certificate="s3cret", key="s3cret"),
        parse_options({"credentialsFile": str(OperatorMode().creds(tmp_path / "user.creds", user := Key()))}),
    ]
    for holder in kept:
        assert "s3cret" not in repr(holder)
        assert secret not in repr(holder)
        assert user.seed not in repr(holder)


def test_a_seed_may_stand_among_comments():
    seed = Key().seed
    text = f"# mine\n-----BEGIN USER NKEY SEED-----\n{seed}\r\n------END USER NKEY SEED------\n"
    assert parse_seed(text) == parse_seed(seed) == Credentials(nkey_seed=seed)


def damaged(seed):
    return seed[:30] + ("A" if seed[30] != "A" else "B") + seed[31:]


@pytest.mark.parametrize("name", ["nkeySeedSecret", "nkeySeedFile"])
@pytest.mark.parametrize(
    "seed",
    [Key(ACCOUNT).seed, damaged(Key().seed), Key().public, "s3cret"],
    ids=["an account's", "damaged", "public", "no key"],  # keys are made anew in each process, and ids must not differ
)
def test_what_is_no_seed_of_a_user_is_refused_without_being_shown(tmp_path, name, seed):
    (tmp_path / "seed").write_text(seed)
    with pytest.raises(OptionError, match=f"option '{name}' .*is not an nkey seed of a user") as raised:
        parse_options({name: seed if name == "nkeySeedSecret" else str(tmp_path / "seed")})
    assert seed not in str(raised.value)


def test_a_creds_file_without_a_jwt_is_refused_without_being_shown(tmp_path):
    key = Key()
    path = key.write(tmp_path / "user.creds")
    with pytest.raises(OptionError, match="holds no NATS USER JWT and USER NKEY SEED") as raised:
        parse_options({"credentialsFile": str(path)})
    assert key.seed not in str(raised.value)


@pytest.mark.parametrize("name", ["credentialsFile", "nkeySeedFile", "tlsCaFile", "tlsCertFile", "tlsKeyFile"])
@pytest.mark.parametrize(
    "content",
    [Key().seed, "-----BEGIN USER NKEY SEED-----", "eyJ0eXAiOiJKV1Q", "a\nb"],
    ids=["seed", "head of a file", "token", "two lines"],
)
def test_what_a_file_should_hold_is_not_shown_when_it_is_given_instead_of_the_file(name, content):
    with pytest.raises(
        OptionError, match=f"option '{name}' must be the name of a file; its value, which may be"
    ) as raised:
        parse_options({name: content})
    assert content not in str(raised.value)


def test_a_file_that_is_no_text_is_not_shown_by_any_exception(tmp_path):
    (tmp_path / "seed").write_bytes(b"s3cret\xff")
    with pytest.raises(OptionError, match="which is not a text file") as raised:
        parse_options({"nkeySeedFile": str(tmp_path / "seed")})
    error = raised.value
    while error:
        assert b"s3cret" not in getattr(error, "object", b"")
        error = error.__context__


@pytest.mark.parametrize("name", ["credentialsFile", "nkeySeedFile", "tlsCaFile", "tlsCertFile"])
def test_a_file_that_is_not_there_is_named(name):
    with pytest.raises(OptionError, match=f"option '{name}' is '/no/file.pem', which cannot be read: No such file"):
        parse_options({name: "/no/file.pem"})


def test_without_the_package_the_extra_is_named():
    script = """
import sys
sys.modules["nkeys"] = None
from spark_nats.client import Credentials
from spark_nats.kinds.queries import parse_options
from spark_nats.protocol.control import ConnectOptions, ServerInfo
for action in (
    lambda: parse_options({"nkeySeedSecret": sys.argv[1]}),
    lambda: Credentials(nkey_seed=sys.argv[1]).add_to(ConnectOptions(), ServerInfo(nonce="n")),
):
    try:
        action()
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script, Key().seed], capture_output=True, text=True, timeout=60)
    on_driver, on_executor = done.stdout.splitlines()
    sentence = "install the package 'nkeys' on the driver and on every executor, with"
    assert on_driver.startswith("OptionError option 'nkeySeedSecret' ")
    assert on_executor.startswith("AuthorizationError ")
    for said in (on_driver, on_executor):
        assert sentence in said
        assert "the extra 'nkeys' of spark-nats; see Installing" in said


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    """Files: `ca`, a client's `certificate` and `key`, both in `both`, an `other` key, and an `encrypted` one."""
    directory = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    issued, other = authority.issue_cert("ann@example.com"), authority.issue_cert("bob@example.com")
    key = issued.private_key_pem.bytes()
    from cryptography.hazmat.primitives import serialization

    locked = serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"s3cret"),
    )
    contents = {
        "ca": "# Türktrust\n".encode() + authority.cert_pem.bytes(),
        "certificate": issued.cert_chain_pems[0].bytes(),
        "key": key,
        "both": issued.private_key_and_cert_chain_pem.bytes(),
        "other": other.private_key_pem.bytes(),
        "encrypted": locked,
        "no": b"no certificate",
        "empty": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    }
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return {name: str(directory / name) for name in contents}


@pytest.mark.parametrize(
    "files",
    [{"tlsCaFile": "ca"}, {"tlsCertFile": "certificate", "tlsKeyFile": "key"}, {"tlsCertFile": "both"}],
)
def test_certificates_travel_as_their_contents(pem, files):
    tls = parse_options({name: pem[file] for name, file in files.items()}).connection.tls
    context = make_tls_context(pickle.loads(pickle.dumps(tls)))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tlsCertFile": "certificate", "tlsKeyFile": "other"}, "are not a pair of PEM files"),
        ({"tlsCertFile": "certificate", "tlsKeyFile": "encrypted"}, "or the key is encrypted"),
        ({"tlsCertFile": "certificate"}, "are not a pair of PEM files"),
        ({"tlsKeyFile": "key"}, "option 'tlsKeyFile' needs the option 'tlsCertFile'"),
        ({"tlsCaFile": "no"}, "which is not a file in PEM format"),
        ({"tlsCaFile": "empty"}, "the certificates to trust are not in PEM"),
        ({"tlsCaFile": "key"}, "the certificates to trust are not in PEM"),
    ],
)
def test_certificates_that_cannot_be_used_are_said(pem, files, words):
    with pytest.raises(OptionError, match=words):
        parse_options({name: pem[file] for name, file in files.items()})


def read_text(path):
    return Path(path).read_text(encoding="utf-8")


SPOILT = {
    "as it is": lambda text: text,
    "with Windows' ends of lines": lambda text: text.replace("\n", "\r\n"),
    "with ends of lines in two letters": lambda text: text.replace("\n", "\\n"),
    "with both": lambda text: text.replace("\n", "\\r\\n"),
    "without the last end": str.strip,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_texts_of_a_secret_store_are_as_good_as_files(pem, tmp_path, spoil):
    creds = OperatorMode().creds(tmp_path / "user.creds")
    files = {"credentialsFile": str(creds), "tlsCaFile": pem["ca"], "tlsCertFile": pem["certificate"]}
    texts = {name.replace("File", "Pem"): spoil(read_text(file)) for name, file in files.items()}
    texts["credentialsSecret"] = texts.pop("credentialsPem")
    of_files = parse_options({**files, "tlsKeyFile": pem["key"]}).connection
    of_texts = parse_options({**texts, "tlsKeySecret": spoil(read_text(pem["key"]))}).connection
    assert of_texts.credentials == of_files.credentials
    for part in ("ca", "certificate", "key"):
        text, file = (getattr(each.tls, part) for each in (of_texts, of_files))
        assert text.replace("\r", "").strip() == file.strip()
    make_tls_context(pickle.loads(pickle.dumps(of_texts.tls)))


def test_a_file_and_a_text_make_a_pair_too(pem):
    certificate, key = read_text(pem["certificate"]), read_text(pem["key"])
    for options in (
        {"tlsCertFile": pem["certificate"], "tlsKeySecret": key},
        {"tlsCertPem": certificate, "tlsKeyFile": pem["key"]},
    ):
        tls = parse_options(options).connection.tls
        assert (tls.certificate, tls.key) == (certificate, key)


def test_a_file_and_its_text_contradict_each_other(pem, tmp_path):
    creds = OperatorMode().creds(tmp_path / "user.creds")
    both = {
        ("credentialsFile", "credentialsSecret"): str(creds),
        ("tlsCaFile", "tlsCaPem"): pem["ca"],
        ("tlsCertFile", "tlsCertPem"): pem["certificate"],
        ("tlsKeyFile", "tlsKeySecret"): pem["key"],
    }
    for (one, other), file in both.items():
        with pytest.raises(OptionError, match=f"options '{one}' and '{other}' contradict each other"):
            parse_options({one: file, other: read_text(file)})
    with pytest.raises(OptionError, match="options 'user' and 'credentialsSecret' contradict each other"):
        parse_options({"user": "u", "credentialsSecret": creds.read_text()})


def test_a_jwt_comes_with_a_seed_and_a_token_with_either(tmp_path):
    creds = OperatorMode().creds(tmp_path / "user.creds")
    found = parse_creds(creds.read_text())
    apart = parse_options({"jwtSecret": f" {found.jwt}\n", "nkeySeedSecret": found.nkey_seed}).connection.credentials
    assert apart == found
    assert parse_options({"credentialsFile": str(creds), "token": "t"}).connection.credentials == replace(
        found, token="t"
    )
    with pytest.raises(OptionError, match="option 'jwtSecret' needs the option 'nkeySeedFile' or 'nkeySeedSecret'"):
        parse_options({"jwtSecret": found.jwt})
    with pytest.raises(OptionError, match="contradict each other"):
        parse_options({"jwtSecret": found.jwt, "credentialsFile": str(creds), "nkeySeedSecret": found.nkey_seed})
    with pytest.raises(OptionError, match="'jwtSecret' is not the JWT of a user") as raised:
        parse_options({"jwtSecret": found.nkey_seed, "nkeySeedSecret": found.nkey_seed})
    assert found.nkey_seed not in str(raised.value)


def test_a_creds_text_may_have_lost_its_lines(tmp_path):
    text = OperatorMode().creds(tmp_path / "user.creds").read_text()
    assert parse_options({"credentialsSecret": " ".join(text.split())}).connection.credentials == parse_creds(text)


def test_a_seed_may_be_a_text_of_several_lines():
    key = Key()
    assert parse_options({"nkeySeedSecret": f"# mine\\n{key.seed}\\n"}).connection.credentials.nkey_seed == key.seed


def in_base64(text):
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"credentialsSecret": "key"}, "'credentialsSecret' holds no NATS USER JWT and USER NKEY SEED"),
        ({"credentialsSecret": ""}, "'credentialsSecret' holds no NATS USER JWT and USER NKEY SEED"),
        (
            {"credentialsSecret": "/etc/user.creds"},
            "holds no NATS USER JWT and USER NKEY SEED, as a .creds file does; the name of a file goes into the option",
        ),
        (
            {"nkeySeedSecret": "/etc/user.nk"},
            "is not an nkey seed of a user, which begins with SU; the name of a file goes into the option with File at",
        ),
        ({"credentialsSecret": ("key", in_base64)}, "'credentialsSecret' is encoded in base64; decode it"),
        ({"tlsCaPem": ""}, "'tlsCaPem' is not a text in PEM format; the name of a file goes into the option with File"),
        ({"tlsCaPem": "/etc/ca.pem"}, "'tlsCaPem' is not a text in PEM format; the name of a file goes into"),
        ({"tlsCaPem": ("ca", in_base64)}, "'tlsCaPem' is encoded in base64; decode it"),
        ({"tlsCaPem": ("ca", lambda text: " ".join(text.split()))}, "'tlsCaPem' has lost the ends of its lines"),
        ({"tlsCaPem": ("certificate", lambda text: text[:-30])}, "'tlsCaPem' has lost the ends of its lines, or its"),
        ({"tlsCaPem": "empty"}, r"for TLS \('tlsCaPem'\) cannot be used: the certificates to trust are not in PEM"),
        (
            {"tlsCaPem": "both"},
            "'tlsCaPem' holds a private key, which Spark's plans would show; give that in 'tlsKeySecret'",
        ),
        ({"tlsCertPem": "both"}, "'tlsCertPem' holds a private key, which Spark's plans would show"),
        ({"tlsCertPem": "certificate"}, "'tlsCertPem' needs the option 'tlsKeyFile' or 'tlsKeySecret'"),
        ({"tlsKeySecret": "key"}, "'tlsKeySecret' needs the option 'tlsCertFile' or 'tlsCertPem'"),
        ({"tlsKeySecret": "certificate", "tlsCertPem": "certificate"}, "'tlsKeySecret' holds no private key"),
        (
            {"tlsKeySecret": "other", "tlsCertPem": "certificate"},
            r"for TLS \('tlsCertPem', 'tlsKeySecret'\) cannot be used: the client's certificate and key are not a pair",
        ),
        ({"tlsKeySecret": "encrypted", "tlsCertPem": "certificate"}, "or the key is encrypted"),
    ],
)
def test_a_text_that_cannot_be_used_is_said_without_being_shown(pem, options, words):
    given = {}
    for name, value in options.items():
        file, spoil = value if isinstance(value, tuple) else (value, str)
        given[name] = spoil(read_text(pem[file])) if file in pem else file
    with pytest.raises(OptionError, match=words) as raised:
        parse_options(given)
    lines = {line.strip() for text in given.values() for line in re.split(r"[\n ]", text) if len(line) > 20}
    error = raised.value
    while error:
        assert not [line for line in lines if line in f"{error} {vars(error)}"]
        error = error.__context__


@pytest.mark.parametrize("end", ["", "="])
def test_a_text_in_base64_is_not_shown_for_the_name_of_a_file(pem, tmp_path, end):
    seed = Key().seed
    creds = OperatorMode().creds(tmp_path / "user.creds").read_text()
    texts = {"credentialsFile": creds, "nkeySeedFile": seed, "tlsKeyFile": read_text(pem["key"])}
    for name, text in texts.items():
        encoded = in_base64(text).rstrip("=") + end
        with pytest.raises(
            OptionError, match=f"'{name}' must be the name of a file; its value, which may be"
        ) as raised:
            parse_options({name: encoded})
        assert encoded not in str(raised.value)
    with pytest.raises(OptionError, match="'nkeySeedSecret' is encoded in base64; decode it"):
        parse_options({"nkeySeedSecret": in_base64(seed)})


def test_no_certificates_are_not_the_systems_certificates():
    with pytest.raises(ValueError, match="the certificates to trust are empty"):
        make_tls_context(TlsOptions(ca=""))
