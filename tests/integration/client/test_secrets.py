"""Secrets get to executors, and nowhere else. These queries run in a Spark of their own, which logs everything."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_nats import NatsDataSource
from spark_nats.client import connect
from spark_nats.client.auth import parse_creds
from spark_nats.embedded import NatsServer
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.queries import parse_options
from tests.certificates import Certificates
from tests.operator_mode import Key, OperatorMode
from tests.servers import ServerFactory

SCRIPT = """
import json, os, shutil, sys
from pyspark.sql import SparkSession
from spark_nats.client import connect
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.queries import parse_options

directory, logins = sys.argv[1], json.loads(sys.argv[2])
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", False)
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.eventLog.enabled", True).config("spark.eventLog.dir", sys.path[0] + "/events")
    .config("spark.eventLog.compress", False)
    .config("spark.executor.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{sys.path[0]}/log4j2.properties")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ALL")
queries = []
for i, (login, kept_login) in enumerate(logins):
    batch = spark.read.format("nats").options(**login, stream="S", minPartitions=2).load()
    source = spark.readStream.format("nats").options(**login, stream="S", startingOffsets="earliest").load()
    source.explain(True)
    sink = source.selectExpr("concat('COPY.', sequence) AS subject", "payload").writeStream.format("nats")
    sink = sink.options(**kept_login, stream="COPY").option("checkpointLocation", sys.path[0] + f"/checkpoint{i}")
    queries.append((kept_login, batch, sink.start()))
shutil.rmtree(directory)  # from here on nobody can read what load() has read
for kept_login, batch, query in queries:
    with connect(parse_options(kept_login).connection) as connection:
        connection.send(b"".join(b"PUB S.x 1\\r\\n%d\\r\\n" % i for i in range(10)))
        connection.flush()
        while ask_stream_info(JetStream(connection), "COPY").messages < 10:
            query.processAllAvailable()
    query.explain(True)
    print(query.lastProgress, query.recentProgress, query.status)
    query.stop()
    assert query.exception() is None, query.exception()
    batch.explain(True)
    batch.explain("formatted")
    print(batch, repr(batch), batch.count(), "rows read")
    elsewhere = batch.selectExpr("'elsewhere' AS subject", "payload")
    elsewhere.write.format("nats").options(**kept_login).mode("append").save()
executors = os.environ["SPARK_HOME"] + "/work/" + spark.sparkContext.applicationId  # what they have said
spark.stop()
shutil.move(executors, sys.path[0] + "/executors")
"""

LOG_EVERYTHING = """
rootLogger.level = all
rootLogger.appenderRef.all.ref = all
appender.all.type = Console
appender.all.name = all
appender.all.target = SYSTEM_ERR
appender.all.layout.type = PatternLayout
appender.all.layout.pattern = %d %p %c: %m%n%ex
# At TRACE it prints the bytes between driver and executors, tasks included; docs/login.md says so.
logger.wire.name = org.apache.spark.network.util.NettyLogger
logger.wire.level = debug
"""


def run(
    logins: list[tuple[dict[str, str], dict[str, str]]], tmp_path: Path, files: Path, environment: dict[str, str]
) -> str:
    """Make the streams, run the script, and return all that it and Spark have said.

    A login is two of them: the first one's files are gone after load(), the other is for what comes later.
    """
    for login, _ in logins:
        with connect(parse_options(login).connection) as connection:
            for stream in ("S", "COPY"):
                create_stream_if_missing(JetStream(connection), {"name": stream, "subjects": [f"{stream}.*"]})
    home = tmp_path / "home"
    (home / "events").mkdir(parents=True)
    script = home / "script.py"
    script.write_text(SCRIPT)
    (home / "log4j2.properties").write_text(LOG_EVERYTHING)
    done = subprocess.run(
        [sys.executable, str(script), str(files), json.dumps(logins)],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    said = done.stdout + done.stderr
    failed = done.returncode != 0  # in a variable, or pytest prints all that was said
    assert not failed, said[said.find("Traceback") :][:5000]
    assert done.stdout.count("10 rows read") == len(logins)
    return said


def assert_nothing_leaks(secrets: list[str], said: str, home: Path) -> None:
    """Look for secrets in what was said and in every file that was left, byte for byte.

    Files of the checkpoint, of the event log and of the executors must be among them.
    """
    left = {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    kinds = {name.split("/")[0].rstrip("0123456789") for name in left}
    assert {"checkpoint", "events", "executors"} <= kinds
    assert any(b"SparkListenerSQLExecutionStart" in content for content in left.values())
    left["what was said"] = said.encode()
    for secret in secrets:
        assert not [name for name, content in left.items() if secret.encode() in content]


HEADER = "Bearer t0ps3cretHeader"
TEXTS = {
    "credentialsFile": "credentialsSecret",
    "tlsCaFile": "tlsCaPem",
    "tlsCertFile": "tlsCertPem",
    "tlsKeyFile": "tlsKeySecret",
}


@dataclass
class Locked:
    """A server that lets in who has a certificate and a JWT, and the options that name their files."""

    server: NatsServer
    login: dict[str, str]

    def secrets(self) -> list[str]:
        """What is in the files: the JWT, the seed, and a line of the certificate's key."""
        credentials = parse_creds(Path(self.login["credentialsFile"]).read_text())
        line = Path(self.login["tlsKeyFile"]).read_text().splitlines()[1]
        return [str(credentials.jwt), str(credentials.nkey_seed), line]

    def texts(self) -> dict[str, str]:
        """The options with what is in the files instead of their names."""
        return {TEXTS.get(name, name): Path(v).read_text() if name in TEXTS else v for name, v in self.login.items()}


def lock(server_factory: ServerFactory, files: Path) -> Locked:
    """Start a server, and write the files."""
    certificates, mode = Certificates(files), OperatorMode()
    server = server_factory(certificates.config("127.0.0.1", "verify: true") + mode.config)
    login = {
        "servers": server.url.replace("nats", "tls"),
        "credentialsFile": str(mode.creds(files / "user.creds")),
        "tlsCaFile": str(certificates.ca),
        **certificates.client("ann@example.com"),
        "websocketHeadersSecret": f'{{"Authorization": "{HEADER}"}}',
    }
    return Locked(server, login)


@pytest.fixture
def locked(server_factory: ServerFactory, tmp_path: Path) -> Locked:
    return lock(server_factory, tmp_path / "files")


@pytest.mark.long("spark_nats/client/auth.py", "spark_nats/options/*")
def test_files_are_read_on_the_driver_and_secrets_are_in_no_log_no_plan_no_event_and_no_checkpoint(
    spark_environment: dict[str, str], server_factory: ServerFactory, locked: Locked, tmp_path: Path
) -> None:
    files, kept, key = tmp_path / "files", tmp_path / "kept", Key()
    shutil.copytree(files, kept)
    other = lock(server_factory, tmp_path / "other")
    secrets = [*locked.secrets(), *other.secrets(), "t0ps3cretPassword", "t0ps3cretToken", key.seed, HEADER]
    kept_login = {name: value.replace(str(files), str(kept)) for name, value in locked.login.items()}

    def login(config: str, **options: str) -> tuple[dict[str, str], dict[str, str]]:
        one = {"servers": server_factory(f"authorization {{ {config} }}").url, **options}
        return one, one

    texts = other.texts()
    shutil.rmtree(tmp_path / "other")
    logins = [
        (locked.login, kept_login),
        (texts, texts),
        login('user: ann, password: "t0ps3cretPassword"', user="ann", password="t0ps3cretPassword"),
        login('token: "t0ps3cretToken"', token="t0ps3cretToken"),
        login(f"users: [ {{nkey: {key.public}}} ]", nkeySeedSecret=key.seed),
    ]
    said = run(logins, tmp_path, files, spark_environment)
    assert not files.exists()
    assert_nothing_leaks(secrets, said, tmp_path / "home")
    assert "DEBUG" in (tmp_path / "home/executors/0/stderr").read_text()


def test_a_task_that_writes_needs_no_files_either(locked: Locked, tmp_path: Path) -> None:
    schema = StructType().add("subject", StringType()).add("payload", BinaryType())
    options = {**locked.login, "stream": "S", "createStream": '{"subjects": ["S.*"]}'}
    connection = parse_options(locked.login).connection
    writer = NatsDataSource(options).writer(schema, overwrite=False)
    shutil.rmtree(tmp_path / "files")
    on_executor = pickle.loads(pickle.dumps(writer))
    on_executor.write(iter([pa.RecordBatch.from_pydict({"subject": ["S.x"], "payload": [b"1"]})]))
    with connect(connection) as client:
        assert ask_stream_info(JetStream(client), "S").messages == 1
