"""What processes of one machine remember together, and where they do not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_nats.client.host_cache import (
    FACT_TTL,
    forget_fact,
    note_fact,
    parent_process,
    pop_all,
    push_text,
    run_unless_succeeded_lately,
    seconds_since,
    text_of_fact,
)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of facts, which is not there yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"spark-nats-{os.geteuid()}"


def in_another_process(directory: Path, script: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", f"from spark_nats.client.host_cache import *; {script}"],
        env={**os.environ, "TMPDIR": str(directory.parent)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.stdout.strip()


def shift(directory: Path, seconds: float) -> None:
    """Make all facts older by so many seconds."""
    for file in directory.iterdir():
        at = file.stat().st_mtime - seconds
        os.utime(file, (at, at))


def test_what_one_process_remembers_another_one_knows(directory: Path) -> None:
    assert seconds_since("it rains") > FACT_TTL
    note_fact("it rains")
    known = seconds_since("it rains")
    assert 0 <= known < FACT_TTL
    assert float(in_another_process(directory, "print(seconds_since('it rains'))")) >= known
    assert seconds_since("it snows") > FACT_TTL
    assert in_another_process(directory, "forget_fact('it rains')") == ""
    assert seconds_since("it rains") > FACT_TTL
    forget_fact("it rains")  # nothing is known of it already


def test_what_is_remembered_again_is_new_again(directory: Path) -> None:
    note_fact("it rains")
    shift(directory, 100)
    assert 100 <= seconds_since("it rains") < FACT_TTL
    note_fact("it rains")
    assert seconds_since("it rains") < 100


def test_old_facts_go_when_something_is_remembered(directory: Path) -> None:
    note_fact("it rained")
    shift(directory, FACT_TTL + 1)
    note_fact("it rains")
    assert seconds_since("it rained") > FACT_TTL
    assert len(list(directory.iterdir())) == 2  # the key stays, however old it is


def test_a_fact_of_the_future_is_none(directory: Path) -> None:
    note_fact("it rains")
    shift(directory, -1000)
    assert seconds_since("it rains") > FACT_TTL


def test_nothing_says_what_is_remembered(directory: Path) -> None:
    note_fact("t0ps3cret")
    names, key = {file.name for file in directory.iterdir()}, directory / "key"
    assert "key" in names
    assert len(names) == 2
    assert all(file.read_bytes() == b"" for file in directory.iterdir() if file != key)
    assert all(file.stat().st_mode & 0o077 == 0 for file in [directory, *directory.iterdir()])
    key.unlink()
    note_fact("t0ps3cret")
    assert len({file.name for file in directory.iterdir()} | names) == 3  # another key makes another name


def test_a_directory_that_others_can_use_is_not_trusted(directory: Path) -> None:
    directory.mkdir(0o755)
    note_fact("it rains")
    assert seconds_since("it rains") > FACT_TTL
    assert list(directory.iterdir()) == []
    directory.chmod(0o700)
    note_fact("it rains")
    assert seconds_since("it rains") < FACT_TTL


def test_a_directory_of_somebody_else_is_not_trusted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note_fact("it rains")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    directory.rename(directory.with_name("spark-nats-4711"))
    assert seconds_since("it rains") > FACT_TTL


def test_a_link_to_a_directory_is_not_followed(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    directory.symlink_to(tmp_path / "elsewhere")
    note_fact("it rains")
    assert seconds_since("it rains") > FACT_TTL
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_where_nothing_can_be_written_nothing_is_remembered(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.touch()
    note_fact("it rains")
    assert seconds_since("it rains") > FACT_TTL
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "none"))
    note_fact("it rains")
    forget_fact("it rains")
    assert seconds_since("it rains") > FACT_TTL


def test_many_processes_at_once_have_one_key(directory: Path) -> None:
    script = "import os; facts = [f'{os.getpid()} {i}' for i in range(50)]; [note_fact(fact) for fact in facts]; "
    script += "print(sum(seconds_since(fact) < FACT_TTL for fact in facts))"
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: in_another_process(directory, script), range(8)))
    assert found == ["50"] * 8
    assert len(list(directory.iterdir())) == 8 * 50 + 1


def test_a_forked_process_remembers_too(directory: Path) -> None:
    note_fact("it rains")
    child = os.fork()
    if not child:
        note_fact("a child was born")
        os._exit(0 if seconds_since("it rains") < FACT_TTL else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert seconds_since("a child was born") < FACT_TTL


def test_what_is_done_once_a_while_is_done_again_after_the_while(directory: Path) -> None:
    done: list[bool] = []
    for _ in range(3):
        run_unless_succeeded_lately("sweep", done.append, 60.0)
    assert done == [False]
    shift(directory, 61)
    run_unless_succeeded_lately("sweep", done.append, 60.0)
    run_unless_succeeded_lately("dust", done.append, 60.0)
    assert done == [False, True, False]


def test_what_fails_is_done_again(directory: Path) -> None:
    def fail(_: bool) -> None:
        raise RuntimeError("the broom broke")

    done: list[bool] = []
    run_unless_succeeded_lately("sweep", done.append, 60.0)
    shift(directory, 61)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            run_unless_succeeded_lately("sweep", fail, 60.0)
    run_unless_succeeded_lately("sweep", done.append, 60.0)
    assert done == [False, False]


def test_processes_have_their_parent_in_common(directory: Path) -> None:
    found = {in_another_process(directory, "print(parent_process())") for _ in range(2)}
    assert len(found) == 1
    assert found != {parent_process()}
    assert found.pop().split()[0] == str(os.getpid())


def test_to_remember_takes_no_heavy_modules(directory: Path) -> None:
    loaded = set(in_another_process(directory, "import sys; note_fact('it rains'); print(*sys.modules)").split())
    assert not loaded & {"ssl", "socket", "numpy", "pyarrow", "spark_nats.client.connection"}


def test_what_one_process_tells_another_one_hears_once_and_in_order(directory: Path) -> None:
    push_text("weather", "nobody has a directory yet")
    note_fact("it rains")
    in_another_process(
        directory, "push_text('weather', 'rain'); push_text('weather', 'größe'); push_text('news', 'none')"
    )
    assert pop_all("weather") == ["rain", "größe"]
    assert pop_all("weather") == []
    assert pop_all("news") == ["none"]
    assert seconds_since("it rains") < FACT_TTL


def test_a_text_that_belongs_to_a_fact_stays_until_another_takes_its_place(directory: Path) -> None:
    assert text_of_fact("weather") == ""
    note_fact("weather", "größe")
    assert in_another_process(directory, "print(text_of_fact('weather')); note_fact('weather', 'sun')") == "größe"
    assert [text_of_fact("weather"), text_of_fact("weather")] == ["sun", "sun"]
    assert seconds_since("weather") < FACT_TTL
    assert len(list(directory.iterdir())) == 2  # it and the key: no draft is left
    shift(directory, FACT_TTL + 1)
    assert text_of_fact("weather") == ""  # though nobody has removed it yet


def test_what_nobody_asks_for_is_forgotten(directory: Path) -> None:
    note_fact("it rains")
    push_text("weather", "rain")
    shift(directory, FACT_TTL + 1)
    note_fact("it snows")
    assert pop_all("weather") == []
