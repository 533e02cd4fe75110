"""Kafka: Spark's connector for it, and a broker, both from Maven Central."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

_POM = Path(__file__).with_name("kafka.xml")
_JARS = Path(__file__).parents[2] / ".tools" / "kafka"
_BROKER = "4.3.0"
_CONNECTOR = ("4.2.0", "4.0.0")  # with its token provider: the newest of Spark 4 that Maven Central was seen to have
_CONNECTOR_JARS = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
_CLUSTER = base64.urlsafe_b64encode(b"spark-nats bench").decode().rstrip("=")
# As in Kafka's own kafka-server-start.sh.
_JAVA_OPTIONS = [
    "-server",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
]
_TOPICS = 1000  # in a request; of 5,000 a controller has more to write than it takes at once
_SECONDS_TO_START = 90.0
_SECONDS_TO_STOP = 20.0
_SECONDS_OF_MAVEN = 600.0
# Waits until its standard input ends, which it does when our process does, in whatever way.
_GUARD = 'read -r _; kill -KILL "$0" 2>/dev/null; rm -rf "$1"'


class KafkaMissingError(Exception):
    """Kafka or Spark's connector for it cannot be had here."""


def connector() -> tuple[list[Path], str]:
    """Return the jars of Spark's connector that PySpark does not have, and the connector's version.

    It is the one of the installed PySpark, or else one that is known to be on Maven Central.

    Raises:
        KafkaMissingError: there is no Maven, or it did not get them.
    """
    spark = version("pyspark")
    error: KafkaMissingError | None = None
    for connector, tokens in dict.fromkeys([(spark, spark), _CONNECTOR]):
        versions = {"connector.version": connector, "tokens.version": tokens}
        try:
            return _jars("connector", connector, versions, f"-DincludeArtifactIds={_CONNECTOR_JARS}"), connector
        except KafkaMissingError as found:
            error = error or found
    raise error or KafkaMissingError


def broker_jars() -> list[Path]:
    """Return all jars of the broker.

    Raises:
        KafkaMissingError: there is no Maven, or it did not get them.
    """
    return _jars("broker", _BROKER, {"broker.version": _BROKER})


def _jars(profile: str, name: str, properties: dict[str, str], *arguments: str) -> list[Path]:
    directory = _JARS / f"{profile}-{name}"
    if not directory.exists():
        _download(profile, directory, [*(f"-D{key}={value}" for key, value in properties.items()), *arguments])
    return sorted(directory.glob("*.jar"))


def _download(profile: str, directory: Path, arguments: list[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaMissingError("there is no Maven: apt-get install maven")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
        found = Path(temporary, "jars")
        command = [maven, "-B", "-q", "-f", str(_POM), "-P", profile, "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={found}", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS_OF_MAVEN)
        except subprocess.TimeoutExpired:
            raise KafkaMissingError(f"Maven did not get the {profile} in {_SECONDS_OF_MAVEN:g} s") from None
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if "[ERROR]" in line]
            raise KafkaMissingError(f"Maven did not get the {profile}: {lines[0][:200] if lines else done.returncode}")
        found.rename(directory)


class Broker:
    """A broker on loopback that is its own controller.

    Attributes:
        address: where it listens.
        pid: its process.
        behind: the port of a second listener, which is for a proxy.
        proxy: the port on which that proxy has to listen, because clients of the second listener are told to go there.
        version: which Kafka it is.
    """

    version = _BROKER

    def __init__(self, address: str, pid: int, behind: int, proxy: int) -> None:
        self.address = address
        self.pid = pid
        self.behind = behind
        self.proxy = proxy

    @contextmanager
    def sender(self, jvm: Any, topic: str) -> Iterator[Callable[[], None]]:
        """Give what stores one small record in a topic through the driver's JVM, and waits until that is done."""
        settings = jvm.java.util.HashMap()
        settings.put("bootstrap.servers", self.address)
        bytes_ = jvm.org.apache.kafka.common.serialization.ByteArraySerializer
        producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(settings, bytes_(), bytes_())
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, bytearray(b"x" * 128))
        try:
            yield lambda: producer.send(record).get()
        finally:
            producer.close()

    @contextmanager
    def topic(self, jvm: Any, partitions: int) -> Iterator[str]:
        """Make a topic, give its name, and delete it in the end."""
        name = f"BENCH_{time.time_ns()}"
        with self.topics(jvm, [name], partitions):
            yield name

    @contextmanager
    def topics(self, jvm: Any, names: list[str], partitions: int) -> Iterator[None]:
        """Make topics through the driver's JVM, and delete them in the end."""
        new = jvm.org.apache.kafka.clients.admin.NewTopic
        blocks = [names[start : start + _TOPICS] for start in range(0, len(names), _TOPICS)]
        with self._admin(jvm) as admin:
            for block in blocks:
                admin.createTopics([new(name, partitions, 1) for name in block]).all().get()
        try:
            yield
        finally:
            with self._admin(jvm) as admin:
                for block in blocks:
                    admin.deleteTopics(block).all().get()

    @contextmanager
    def _admin(self, jvm: Any) -> Iterator[Any]:
        settings = jvm.java.util.HashMap()
        settings.put("bootstrap.servers", self.address)
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            yield admin
        finally:
            admin.close()


@contextmanager
def start_broker(jars: list[Path]) -> Iterator[Broker]:
    """Start a broker with its data in a temporary directory, and stop it in the end.

    Raises:
        KafkaMissingError: it did not start.
    """
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if os.environ.get("JAVA_HOME") else "java"
    with tempfile.TemporaryDirectory(prefix="spark-nats-kafka-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        client, behind, proxy, controller = _free_ports(4)
        settings = directory / "server.properties"
        settings.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=NEAR://127.0.0.1:{client},FAR://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=NEAR://127.0.0.1:{client},FAR://127.0.0.1:{proxy}\n"
            "listener.security.protocol.map=NEAR:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            "inter.broker.listener.name=NEAR\n"
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={directory / 'data'}\n"
            "auto.create.topics.enable=false\n"
            "offsets.topic.replication.factor=1\n",
            encoding="utf-8",
        )
        command = [java, *_JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
        _format(command, settings)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen([*command, "kafka.Kafka", str(settings)], stdout=log, stderr=log, cwd=name)
            guard = subprocess.Popen(["sh", "-c", _GUARD, str(process.pid), name], stdin=subprocess.PIPE)
        try:
            _wait_for(process, client, directory / "log")
            yield Broker(f"127.0.0.1:{client}", process.pid, behind, proxy)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_STOP)
            process.kill()
            process.wait()
            guard.kill()  # before it could kill another process with the same id
            guard.communicate()


def _format(command: list[str], settings: Path) -> None:
    asked = [*command, "kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER, "--config", str(settings)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=_SECONDS_TO_START)
    if done.returncode:
        raise KafkaMissingError(f"the broker's storage could not be formatted: {done.stderr[-500:]}")


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise KafkaMissingError(f"the broker did not start: {log.read_text(encoding='utf-8')[-500:]}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
