"""A soak: the query runs for long and a server restarts now and then, and nothing may grow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from tests.chaos.cluster import IN, ChaosCluster
from tests.chaos.driver import Driver
from tests.chaos.run import say
from tests.chaos.stage import STALL_LIMIT, STREAM, conclude, keep_logs, stage, watching

_SAMPLE_SECONDS = 10.0
_RESTART_SECONDS = 120.0
_MIB = 1024 * 1024

Sample = dict[str, float]


def soak(minutes: float, rate: float, master: str, keep: Path | None) -> int:
    """Run for so many minutes and print what each figure was in the first and in the last quarter."""
    samples: list[Sample] = []
    with stage(master, STREAM.options, keep) as staged:
        publisher = STREAM.publisher(staged.cluster, rate)
        watch = watching(staged, publisher)
        try:
            staged.driver.start()
            watch.wait_for_progress(STALL_LIMIT)
            _run(minutes, staged.cluster, staged.driver, samples)
            problems = conclude(staged, publisher, watch)
            verdict = STREAM.compare(staged, publisher)
        finally:
            watch.close()
        ended = staged.driver.ended
        print(compare(samples))
        print(
            f"{verdict.messages} messages, {verdict.lost} lost, {verdict.duplicated} duplicated, "
            f"{verdict.reordered} out of order, longest stall {watch.longest_stall:.1f} s"
        )
        bad = bool(problems or ended) or not verdict.good
        for line in [*verdict.examples(), *problems, *(f"the query ended: {sentence}" for sentence in ended)]:
            print(line)
        if bad or keep:
            print(f"logs: {staged.logs if keep else keep_logs(staged.logs)}")
    return int(bad)


def _run(minutes: float, cluster: ChaosCluster, driver: Driver, samples: list[Sample]) -> None:
    began = time.monotonic()
    restarts = 0
    while (passed := time.monotonic() - began) < minutes * 60:
        samples.append(_sample(cluster, driver))
        say(", ".join(f"{name} {value:g}" for name, value in samples[-1].items()))
        if passed > (restarts + 1) * _RESTART_SECONDS:
            server = cluster.servers[restarts % 3]
            restarts += 1
            say(f"restart of {cluster.name(server)}")
            cluster.end(server)
            cluster.start(server)
        due = began + len(samples) * _SAMPLE_SECONDS
        time.sleep(max(0.0, due - time.monotonic()))


def _sample(cluster: ChaosCluster, driver: Driver) -> Sample:
    pythons, jvm = driver.pythons(), driver.jvm()
    streams = cluster.streams()
    return {
        "JVM MiB": round(_memory([jvm])),
        "Python MiB": round(_memory(pythons)),
        "Python processes": len(pythons),
        "sockets": sum(map(_sockets, [jvm, *pythons])),
        "JVM threads": _threads(jvm),
        "Python threads": sum(map(_threads, pythons)),
        "consumers": streams[IN].consumers if IN in streams else 0,
    }


def _memory(processes: Sequence[psutil.Process]) -> float:
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total / _MIB


def _threads(process: psutil.Process) -> int:
    try:
        return int(process.num_threads())
    except psutil.Error:
        return 0


def _sockets(process: psutil.Process) -> int:
    count = 0
    with suppress(OSError):
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(OSError):
                count += str(descriptor.readlink()).startswith("socket:")
    return count


def compare(samples: Sequence[Sample]) -> str:
    """A table of the medians in the first and in the last quarter of the samples, and how these have changed."""
    quarter = max(1, len(samples) // 4)
    lines = [f"{'':18} {'first':>8} {'last':>8} {'ratio':>6}"]
    for name in samples[0] if samples else ():
        first, last = (median(sample[name] for sample in part) for part in (samples[:quarter], samples[-quarter:]))
        lines.append(f"{name:18} {first:8g} {last:8g} {last / first if first else float('nan'):6.2f}")
    return "\n".join(lines)
