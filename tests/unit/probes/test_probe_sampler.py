"""The sampler: rows of one length, reasons once, nothing lost at the end, within its budget."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil
import pytest
from stub_nvml import StubNvml

from pytest_llmsla.probes.card_samples import FIGURES, SLOWED_BY, card_sources, slowed_by
from pytest_llmsla.probes.listener import Member, Tree
from pytest_llmsla.probes.memory import MemoryProbe
from pytest_llmsla.probes.nvml import all_cards
from pytest_llmsla.probes.procfs import ProcFile, process_use, resident, system_times
from pytest_llmsla.probes.sampler import BUDGET, FAST, HZ, Sampler, Source
from pytest_llmsla.probes.server_memory import ServerMemory
from pytest_llmsla.probes.usage import HostUse, ServerUse, host_source

_PATIENCE_S = 30.0
_HZ = 500.0


class Said:
    """Keeps what a sampler gave out."""

    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []

    def __call__(self, line: Mapping[str, Any]) -> None:
        self.lines.append(line)

    def column(self, name: str) -> list[Any]:
        """All values of a column."""
        return [value for line in self.lines for value in line["columns"][name]]


def after(reads: int, value: Callable[[int], Any]) -> tuple[threading.Event, Callable[[], Any]]:
    """A read that tells when it was called so often; ``value`` gives its n-th figures."""
    seen, done = 0, threading.Event()

    def read() -> Any:
        nonlocal seen
        seen += 1
        if seen >= reads:
            done.set()
        return value(seen)

    return done, read


def run(sources: Sequence[Source], *done: threading.Event, **settings: Any) -> Said:
    """Sample until every event is set."""
    said = Said()
    with Sampler(sources, said, hz=_HZ, **settings):
        for event in done:
            assert event.wait(_PATIENCE_S)
    return said


def test_every_column_is_as_long_as_the_times() -> None:
    """Rows are whole whatever the sources do: one at a lower rate, one that waits, one broken."""
    fast, quick = after(20, lambda n: (float(n),))
    slow, waits = after(5, lambda n: (float(n), "off"))

    def broken() -> Sequence[float]:
        raise OSError("gone")

    said = run(
        [
            Source(("quick",), quick, hz=_HZ),
            Source(("seldom",), lambda: (1.0,), hz=_HZ / 4),
            Source(("waits", "never"), waits, hz=_HZ, slow=True),
            Source(("broken",), broken, hz=_HZ),
        ],
        fast,
        slow,
    )
    rows = len(said.column("t_ns"))
    for name in ("quick", "seldom", "waits", "never", "broken"):
        assert len(said.column(name)) == rows
    times = said.column("t_ns")
    assert times == sorted(times)
    quick_ones = said.column("quick")
    assert quick_ones == [float(n + 1) for n in range(rows)]
    assert said.column("seldom").count(1.0) == (rows + 3) // 4
    assert said.column("waits").count(None) < rows
    assert set(said.column("never")) == set(said.column("broken")) == {None}


def test_a_reason_is_given_once_and_a_probe_may_come_back() -> None:
    """A column without a number has its reason once; numbers after it are taken."""
    done, read = after(9, lambda n: ("no permission",) if n % 2 else (float(n),))
    said = run([Source(("figure",), read, hz=_HZ)], done)
    reasons = [line["reasons"] for line in said.lines if "reasons" in line]
    assert reasons == [{"figure": "no permission"}]
    assert 2.0 in said.column("figure")


def test_a_source_that_gives_too_few_figures_has_none() -> None:
    """Figures are never put under another column's name."""
    done, read = after(2, lambda n: (1.0,))
    said = run([Source(("a", "b"), read, hz=_HZ)], done)
    assert said.lines[0]["reasons"] == dict.fromkeys(("a", "b"), "gave 1 figures of 2")


def test_what_is_not_finite_is_no_number() -> None:
    """NaN and infinity never reach the log."""
    done, read = after(2, lambda n: (float("nan"), float("inf")))
    said = run([Source(("a", "b"), read, hz=_HZ)], done)
    assert {*said.column("a"), *said.column("b")} == {None}


def test_a_probe_that_breaks_in_the_middle_costs_its_own_figures_only() -> None:
    """It gives what is no number, raises when it is closed, and the rest goes on."""

    def close() -> None:
        raise OSError("already gone")

    done, read = after(20, lambda n: (float(n),) if n < 5 else ([n],))
    other, counts = after(20, lambda n: (float(n),))
    told: list[str] = []
    said = run(
        [Source(("a",), read, hz=_HZ, close=close), Source(("b",), counts, hz=_HZ)],
        done,
        other,
        say=told.append,
    )
    assert None not in said.column("b")
    assert [v for v in said.column("a") if v is not None] == [1.0, 2.0, 3.0, 4.0]
    assert said.lines[0]["reasons"]["a"] == "gave [5], which is no number"
    assert told == ["closing the probe of a raised OSError: already gone"]


def test_a_short_window_has_its_first_and_last_row() -> None:
    """Begun and ended at once, there are two rows, by the clock that was given."""
    ticks = iter(range(100, 200))
    said = Said()
    sampler = Sampler([Source(("a",), lambda: (1.0,), hz=0.001)], said, clock=lambda: next(ticks))
    with sampler:
        pass
    sampler.stop()
    assert said.column("t_ns")[0] == 100
    assert len(said.column("t_ns")) == sampler.rows >= 2


def test_a_log_that_refuses_ends_recording_and_is_told_once() -> None:
    """A full disk breaks no measurement from the sampler's thread."""
    told: list[str] = []

    def refuse(_: Mapping[str, Any]) -> None:
        raise OSError("no space left")

    sampler = Sampler([Source(("a",), lambda: (1.0,))], refuse, say=told.append)
    sampler.start()
    sampler.flush()
    sampler.stop()
    assert told == ["resources are not recorded any more: OSError: no space left"]


def test_sources_are_closed_after_the_last_reading() -> None:
    """What a source opened is released once."""
    events: list[str] = []
    done, read = after(3, lambda n: (events.append("read"), 1.0)[1:])
    source = Source(("a",), read, hz=_HZ, close=lambda: events.append("closed"))
    run([source], done)
    assert events.count("closed") == 1
    assert events[-1] == "closed"


def test_what_costs_most_is_read_less_often() -> None:
    """Rather than spend more than the budget, the costliest thread halves its rate, and in the one
    that is shared the costliest source."""
    said = Said()

    def burn() -> Sequence[float]:
        return (float(sum(range(300_000))),)

    sources = [
        Source(("cheap",), lambda: (1.0,)),
        Source(("costly",), burn),
        Source(("waits",), lambda: (1.0,), slow=True),
    ]
    sampler = Sampler(sources, said)
    began = time.thread_time_ns()
    for _ in range(10):
        sampler._row()
    spent = time.thread_time_ns() - began
    (cheap, costly), (waits,) = sampler._fast, sampler._slow
    whole_s = spent / 1e9

    def every() -> list[int]:
        return [cheap.every, costly.every, waits.every, sampler._stride]

    sampler._spent_ns = {FAST: spent}
    sampler._keep_budget(whole_s / BUDGET * 2)
    assert every() == [1, 1, 1, 1]
    sampler._spent_ns = {FAST: 2 * spent, 0: 3 * spent}
    sampler._keep_budget(whole_s)
    assert every() == [1, 1, 2, 1]
    sampler._spent_ns = {FAST: 3 * spent, 0: 3 * spent}
    sampler._keep_budget(10 / HZ)
    assert every() == [1, 2, 2, 1]
    sampler._spent_ns = {FAST: 1000 * spent, 0: 3 * spent}
    sampler._keep_budget(whole_s)
    assert every() == [1, 2, 2, 2]
    for _ in range(4):
        sampler._row()
    sampler.flush()
    assert [v is None for v in said.column("costly")[-4:]].count(True) == 2
    assert None not in said.column("cheap")


def test_this_process_and_this_machine() -> None:
    """Figures are percentages, a load and a size; none is invented at the first reading."""
    use = HostUse()
    done, read = after(40, lambda n: use.read())
    said = run([Source(HostUse.columns, read, hz=_HZ)], done)
    assert all(v is None or v >= 0 for v in said.column("process_cpu"))
    assert all(v is None or 0 <= v <= 100 for v in said.column("system_cpu"))
    assert all(v > 1 for v in said.column("process_rss_mib"))
    assert host_source().columns == HostUse.columns


def test_the_kernels_own_lines() -> None:
    """Busy time is all but idle and waiting, guests counted once; a name may hold anything."""
    stat = b"cpu  100 20 30 700 50 5 5 10 60 7\ncpu0 1 2 3\n"
    assert system_times(stat) == (170.0, 920.0)
    fields = [b"S", *(b"%d" % n for n in range(4, 40))]
    used, rss = process_use(b"7 (a) b (c) " + b" ".join(fields) + b"\n")
    assert used == (14 + 15) / os.sysconf("SC_CLK_TCK")
    assert rss == 24 * os.sysconf("SC_PAGE_SIZE")
    assert resident(b"900 450 30 1 0 80 0\n") == 450 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_they_are_what_psutil_reads() -> None:
    """Of this very process and machine."""
    file = ProcFile("self/stat")
    used, rss = process_use(file.read())
    file.close()
    file.close()
    times = psutil.Process().cpu_times()
    assert used == pytest.approx(times.user + times.system, abs=0.5)
    assert rss == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    with pytest.raises(OSError, match="No such file"):
        ProcFile("self/nothing")


def own_tree() -> Tree:
    """This very process as a server's."""
    me = psutil.Process()
    member = Member(me.pid, me.create_time(), me.name())
    return Tree((member,), (member,))


def test_processes_of_a_server() -> None:
    """Memory is that of its processes; CPU used before it was looked at counts for nothing."""
    use = ServerUse(own_tree)
    cpu, rss = use.read()
    assert cpu is None
    assert isinstance(rss, float)
    assert rss == pytest.approx(psutil.Process().memory_info().rss / (1 << 20), rel=0.2)


def test_a_server_that_ended_is_no_idle_server() -> None:
    """No processes, no figure: never 0."""
    gone = Member(2**22 + os.getpid(), 0.0, "gone")
    with pytest.raises(Exception, match="have ended"):
        ServerUse(lambda: Tree((gone,), (gone,))).read()


class TimedNvml(StubNvml):
    """The stub with figures over time: card 3 is the busy one."""

    def nvmlDeviceGetUtilizationRates(self, handle: tuple[str, int]) -> Any:  # noqa: N802
        if handle[0] == "mig":
            raise RuntimeError("Not Supported")
        return type("Rates", (), {"gpu": 97 if handle == ("gpu", 3) else 0})

    def nvmlDeviceGetPowerUsage(self, handle: tuple[str, int]) -> int:  # noqa: N802
        return 512_000

    def nvmlDeviceGetClockInfo(self, handle: tuple[str, int], kind: int) -> int:  # noqa: N802
        return 1400

    def nvmlDeviceGetTemperature(self, handle: tuple[str, int], kind: int) -> int:  # noqa: N802
        return 81

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:  # noqa: N802
        return 0x1 | 0x2 | 0x4 | 0x40


def test_the_card_that_is_used_is_the_one_that_is_read() -> None:
    """By its UUID: index 0 of the machine never stands in for it."""
    nvml = TimedNvml()
    card = all_cards(nvml)[3]
    (source,) = card_sources(nvml, [card])
    assert source.columns == tuple(f"gpu_{f}" for f in FIGURES)
    assert source.about == dict.fromkeys(source.columns, "H, GPU-3aaa-bbbb")
    assert source.read() == (97.0, 40 * 1024.0, 512.0, 1400.0, 81.0, float(0x44))
    assert slowed_by(0x44) == ["software power cap", "hardware thermal slowdown"]
    assert set(nvml.asked) == {("gpu", 3)}


def test_several_cards_and_a_figure_that_one_does_not_tell() -> None:
    """Each card has its own columns; a slice without utilisation says so and keeps the rest."""
    nvml = TimedNvml()
    cards = [all_cards(nvml)[0], all_cards(nvml)[3]]
    first, second = card_sources(nvml, cards)
    assert first.columns[0] == "gpu0_util"
    assert second.about["gpu1_util"] == "H, GPU-3aaa-bbbb"
    sliced = card_sources(nvml, [type(cards[0])("MIG-0", "H", ("mig", 0))])[0].read()
    assert sliced[0] == "NVML: RuntimeError: Not Supported"
    assert sliced[1] == 5 * 1024.0
    assert all(bit & sum(SLOWED_BY) for bit in SLOWED_BY)


class OneCard:
    """A framework on one card that knows no UUID."""

    def cards(self, device: str) -> list[int]:
        return [0] if device.startswith("cuda") else []

    def uuid(self, card: int) -> str | None:
        return None

    def reset(self, card: int) -> None:
        """Nothing to forget."""

    def peaks(self, card: int) -> tuple[int, int]:
        return 1, 1


def test_the_cards_of_a_model_in_this_process() -> None:
    """Those that its memory is read of; none on a CPU, none where the card cannot be told."""
    nvml = TimedNvml()
    visible = {"CUDA_VISIBLE_DEVICES": "3"}

    def sources(device: str, environ: Mapping[str, str]) -> list[Source]:
        return MemoryProbe(device, framework=OneCard(), nvml=nvml, environ=environ).sources()

    (source,) = sources("cuda:0", visible)
    assert source.about["gpu_util"].endswith("GPU-3aaa-bbbb")
    assert sources("cpu", visible) == []
    assert sources("cuda:0", {"CUDA_VISIBLE_DEVICES": ""}) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems hide others' sockets")
def test_the_processes_of_a_server_on_this_host() -> None:
    """Found by its port, and read apart from the readings of its memory."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        memory = ServerMemory("127.0.0.1", listening.getsockname()[1], nvml=TimedNvml())
        (source,) = memory.sources()
        assert source.columns == ServerUse.columns
        _, rss = source.read()
        # With its children, of which a test run may have some.
        assert rss is not None
        assert rss >= 0.5 * psutil.Process().memory_info().rss / (1 << 20)
    assert ServerMemory("203.0.113.9", 80, nvml=TimedNvml()).sources() == []
