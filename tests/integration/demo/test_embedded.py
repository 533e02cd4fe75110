import http.client
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from spark_nats import clock
from spark_nats.embedded import EmbeddedServerError, NatsServer
from spark_nats.errors import NatsError
from tests.nats_py import NatsPy, wait_until
from tests.servers import ServerFactory


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except OSError:
        return False
    return True


def test_a_server_answers_as_soon_as_it_has_started(server_factory: ServerFactory) -> None:
    server = server_factory()
    assert server.url == f"nats://127.0.0.1:{server.port}"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        assert connection.recv(5) == b"INFO "
    with NatsPy(server.url) as client:
        assert client.api("INFO")["streams"] == 0
    monitoring = http.client.HTTPConnection(server.monitoring_url.removeprefix("http://"), timeout=30)
    monitoring.request("GET", "/varz")
    assert monitoring.getresponse().status == 200
    monitoring.close()
    assert "Server is ready" in server.log_path.read_text()


def test_two_servers_run_side_by_side(server_factory: ServerFactory) -> None:
    first, second = server_factory(), server_factory()
    assert first.port != second.port
    assert first.monitoring_url != second.monitoring_url
    with NatsPy(first.url) as client:
        client.create_stream("ONLY_THERE")
    with NatsPy(second.url) as client:
        assert client.api("STREAM.NAMES")["total"] == 0


def test_the_block_leaves_neither_process_nor_files() -> None:
    with NatsServer() as server:
        assert server.pid is not None
        directory = server.log_path.parent
        assert (directory / "store").is_dir()
    assert not server.running
    assert server.pid is None
    assert not is_listening(server.port)
    assert not directory.exists()
    with pytest.raises(EmbeddedServerError, match="not running"):
        _ = server.log_path


def test_starting_and_stopping_twice_do_no_harm(server_factory: ServerFactory) -> None:
    server = server_factory()
    pid = server.pid
    assert server.start().pid == pid
    server.stop()
    server.stop()
    assert not server.running


def test_a_server_killed_from_outside_is_noticed(server_factory: ServerFactory) -> None:
    server = server_factory()
    directory = server.log_path.parent
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.running)
    server.stop()
    assert not directory.exists()


def test_a_server_that_ended_by_itself_and_starts_again_has_one_guard() -> None:
    with NatsServer() as server:
        before = server._guard
        assert server._process is not None
        assert before is not None
        server._process.kill()
        server._process.wait()
        server.start()
        assert before.poll() is not None
        assert server.running


def test_a_server_that_ignores_sigterm_is_killed(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_nats.embedded._STOP_SECONDS", 0.2)
    server = server_factory()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert not is_listening(server.port)


@pytest.mark.promise("durability#killed")
def test_a_killed_server_comes_back_with_its_port_and_streams(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("KEPT")
        client.publish_acked([("KEPT.x", b"1")])
    port = server.port
    server.kill()
    assert not is_listening(port)
    assert server.start().port == port
    with NatsPy(server.url) as client:
        assert client.held("KEPT") == 1


def test_a_given_port_and_store_outlive_the_server(server_factory: ServerFactory, tmp_path: Path) -> None:
    store = tmp_path / "store"
    server = server_factory(store_dir=store)
    with NatsPy(server.url) as client:
        client.create_stream("KEPT")
        client.publish_acked([("KEPT.x", b"1")])
    server.stop()
    again = server_factory(port=server.port, store_dir=store)
    assert again.port == server.port
    with NatsPy(again.url) as client:
        assert client.held("KEPT") == 1


def test_extra_configuration_joins_the_servers_own(server_factory: ServerFactory) -> None:
    config = """
        max_payload: 2048
        jetstream { domain: hub }
        authorization { user: ann, password: secret }
    """
    server = server_factory(config)
    with NatsPy(server.url, user="ann", password="secret") as client:
        assert client.nats.max_payload == 2048
        assert client.api("INFO")["domain"] == "hub"
    assert (server.log_path.parent / "store").is_dir()
    assert "secret" not in repr(server)


def test_jetstream_can_be_off(server_factory: ServerFactory) -> None:
    with NatsPy(server_factory(jetstream=False).url) as client:
        with client.collect("x") as collected:
            client.publish("x", b"1")
            collected.wait(1)
        assert "jetstream" not in client.nats._server_info


def test_a_bad_configuration_shows_what_the_server_says(server_factory: ServerFactory) -> None:
    with pytest.raises(EmbeddedServerError, match='unknown field "no_such_setting"'):
        server_factory("no_such_setting: 1")


def test_a_taken_port_shows_what_the_server_says(server_factory: ServerFactory) -> None:
    taken = server_factory()
    with pytest.raises(EmbeddedServerError, match="address already in use"):
        server_factory(port=taken.port)
    assert taken.running


def test_a_server_that_is_never_ready_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeper = tmp_path / "nats-server"
    sleeper.write_text("#!/bin/sh\necho still thinking\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr("spark_nats.embedded.find_binary", lambda: sleeper)
    server = NatsServer(ready_timeout=60)

    def until_it_has_said_so(_: float) -> None:
        wait_until(lambda: "still thinking" in server.log_path.read_text())
        monkeypatch.setattr(clock, "monotonic", lambda: time.monotonic() + 61)

    monkeypatch.setattr(clock, "sleep", until_it_has_said_so)
    with pytest.raises(EmbeddedServerError, match=r"not ready within 60 s(?s:.*)still thinking"):
        server.start()
    assert not server.running


def test_a_missing_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NatsError, match="the extra 'embedded' of spark-nats; see Installing"):
        NatsServer().start()


@pytest.mark.parametrize(("mode", "why"), [(None, "No such file or directory"), (0o644, "Permission denied")])
def test_a_given_program_that_cannot_be_run_says_what_to_install(mode: int | None, why: str, tmp_path: Path) -> None:
    binary = tmp_path / "nats-server"
    if mode is not None:
        binary.touch(mode)
    server = NatsServer(binary=binary)
    with pytest.raises(EmbeddedServerError) as raised:
        server.start()
    assert raised.value.condition == "NATS_SERVER_NOT_EXECUTED"
    assert f"{binary} cannot be executed: {why}" in str(raised.value)
    assert "the extra 'embedded' of spark-nats; see Installing" in str(raised.value)
    with pytest.raises(EmbeddedServerError, match="not running"):
        _ = server.log_path


def test_a_program_on_the_path_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from spark_nats.embedded import find_binary

    real = find_binary()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(real.parent))
    assert find_binary() == real


def test_an_interpreter_that_forgets_its_server_still_stops_it() -> None:
    script = """
        from spark_nats.embedded import NatsServer
        server = NatsServer().start()
        print(server.port, server.log_path.parent, flush=True)
        raise SystemExit("on purpose")
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    port, directory = ended.stdout.split()
    assert ended.returncode == 1
    assert not is_listening(int(port))
    assert not Path(directory).exists()


def test_a_server_does_not_outlive_a_process_that_is_killed() -> None:
    script = (
        "import time; from spark_nats.embedded import NatsServer; server = NatsServer().start(); "
        "print(server.pid, server.log_path.parent, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid, directory = process.stdout.readline().split()
    assert psutil.pid_exists(int(pid))
    process.kill()
    process.communicate()
    wait_until(lambda: not psutil.pid_exists(int(pid)) and not Path(directory).exists())
