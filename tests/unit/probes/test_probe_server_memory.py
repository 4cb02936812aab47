"""Memory of a server: of the processes that hold the port, of nobody else, or unknown."""
# ruff: noqa: N802 - the names are those of the NVML binding

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from stub_nvml import GIB, StubNvml

from pytest_llmsla.probes.listener import ListenerError, local_addresses, serving
from pytest_llmsla.probes.server_cards import Cards
from pytest_llmsla.probes.server_memory import FIGURES, HOW, ServerMemory

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems hide others' sockets")

# Listens, takes MiB of memory (touched), and with a third argument starts a child that takes as
# many as that and holds nothing of the port. Says "<port> <child pid>" when all of it stands.
SERVER = """
import socket, subprocess, sys
ours, port, childs = (int(x) for x in sys.argv[1:4])
held = b"x" * (ours << 20)
code = "import sys; held = b'x' * (int(sys.argv[1]) << 20); print(1, flush=True); sys.stdin.read()"
child = None
if childs:
    child = subprocess.Popen([sys.executable, "-c", code, str(childs)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", port))
s.listen()
print(s.getsockname()[1], child.pid if child else 0, flush=True)
for line in sys.stdin:
    if line.strip() == "grow":
        more = b"x" * (64 << 20)
        del more
    if line.strip() == "bye":
        child.stdin.close()
        child.wait()
    print("done", flush=True)
"""


class Started:
    """A server process of a test."""

    def __init__(self, ours: int = 8, child: int = 0, port: int = 0, program: str = "") -> None:
        self.process = subprocess.Popen(
            [program or sys.executable, "-c", SERVER, str(ours), str(port), str(child)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said, pid = self.process.stdout.readline().split()
        self.port, self.child = int(said), int(pid)

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def stop(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    running: list[Started] = []

    def begin(**given: Any) -> Started:
        running.append(Started(**given))
        return running[-1]

    yield begin
    for each in running:
        if not each.process.stdin or not each.process.stdin.closed:
            each.stop()


def unknown(reading: dict[str, Any]) -> bool:
    return all(reading[name] is None and reading[f"{name}_reason"] for name in FIGURES)


NO_NVML = SimpleNamespace()
"""A binding that does not start: a host without NVIDIA's driver."""


# -- on this host


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_on_this_host_is_read_with_its_children_and_without_its_parent(
    start: Callable[..., Started], host: str
) -> None:
    """Engine children hold the model; whoever started the server does not."""
    server = start(ours=32, child=64)
    memory = ServerMemory(host, server.port, nvml=NO_NVML)
    memory.reset()
    reading = memory.read()
    pids = {p["pid"] for p in reading["processes"]}
    assert pids == {server.process.pid, server.child}
    assert os.getpid() not in pids
    assert reading["device"] == "cpu"
    assert 96 * MIB / GIB < reading["rss_peak"] < 0.5
    assert reading["rss_now"] <= reading["rss_peak"]
    assert "2 process" in reading["methods"]["rss_peak"]
    assert reading["device_used_peak"] is None
    assert "problem" not in reading
    assert reading["pss"] < reading["rss_now"]


@linux
def test_the_peak_bounds_what_was_taken_and_given_back_inside_a_request(
    start: Callable[..., Started],
) -> None:
    """Samples between requests miss it; the kernel's mark does not."""
    server = start()
    memory = ServerMemory("127.0.0.1", server.port, nvml=NO_NVML)
    memory.reset()
    before = memory.read()
    server.tell("grow")
    after = memory.read()
    assert after["rss_peak"] - before["rss_peak"] > 50 * MIB / GIB
    assert after["rss_sampled_peak"] - before["rss_sampled_peak"] < 50 * MIB / GIB


@linux
def test_a_child_that_ended_stays_in_the_peak(start: Callable[..., Started]) -> None:
    """What a worker held while it lived was held."""
    server = start(ours=8, child=64)
    memory = ServerMemory("127.0.0.1", server.port, nvml=NO_NVML)
    memory.reset()
    before = memory.read()
    server.tell("bye")
    after = memory.read()
    assert after["rss_peak"] >= before["rss_peak"]
    assert [p["pid"] for p in after["processes"]] == [server.process.pid]


@linux
def test_a_restart_in_the_middle_makes_every_figure_unknown(start: Callable[..., Started]) -> None:
    """Another process holds the port: said with both pids, until the next window."""
    first = start()
    memory = ServerMemory("127.0.0.1", first.port, nvml=NO_NVML)
    memory.reset()
    assert memory.read()["rss_peak"]
    first.stop()
    second = start(port=first.port)
    for _ in range(2):
        reading = memory.read()
        assert unknown(reading)
        assert (
            f"restarted while it was measured: pid {first.process.pid} became"
            in (reading["problem"])
        )
        assert str(second.process.pid) in reading["problem"]
        assert HOW in reading["problem"]
    memory.reset()
    assert memory.read()["rss_peak"]


@linux
def test_a_server_that_is_gone_has_no_memory(start: Callable[..., Started]) -> None:
    """Nobody listens any more: unknown, not the last figure."""
    server = start()
    memory = ServerMemory("127.0.0.1", server.port, nvml=NO_NVML)
    memory.reset()
    server.stop()
    reading = memory.read()
    assert unknown(reading)
    assert "no process of this host is seen listening" in reading["problem"]


@linux
@pytest.mark.parametrize("name", ["docker-proxy", "nginx", "socat", "envoy", "ssh", "kubectl"])
def test_a_proxy_is_not_taken_for_the_model(
    start: Callable[..., Started], tmp_path: Path, name: str
) -> None:
    """Recognised by the name of its process; its memory is shown as nobody's."""
    program = tmp_path / name
    program.symlink_to(sys.executable)
    server = start(program=str(program))
    reading = ServerMemory("127.0.0.1", server.port, nvml=NO_NVML).read()
    assert unknown(reading)
    assert f"held by {name} (pid {server.process.pid})" in reading["problem"]
    assert "not the model's" in reading["problem"]
    assert HOW in reading["problem"]


@linux
def test_a_gateway_is_known_by_its_command_line(tmp_path: Path) -> None:
    """An interpreter that runs a gateway (MII's REST front, LiteLLM) holds no model."""
    code = SERVER.replace("sys.argv[1:4]", "(8, 0, 0)")
    with subprocess.Popen(
        [sys.executable, "-c", code, "--restful-gateway"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[0])
        with pytest.raises(ListenerError, match=r"--restful-gateway.* passes requests on"):
            serving(port)
        process.terminate()


def test_a_port_that_nobody_holds_is_unknown_with_the_way_out() -> None:
    """The reason names the port, containers, and how to declare."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        reading = ServerMemory("127.0.0.1", port, nvml=NO_NVML).read()
    assert unknown(reading)
    assert f"port {port}" in reading["problem"]
    assert "target.memory_gib and target.memory_source" in reading["problem"]


def test_own_addresses_are_local_and_others_are_not() -> None:
    """Loopback names and this machine's interfaces; a documentation address is elsewhere."""
    assert "127.0.0.1" in local_addresses("localhost")
    assert local_addresses("::1") == {"::1"}
    assert local_addresses("192.0.2.1") == frozenset()
    own = [
        a.address
        for many in psutil.net_if_addrs().values()
        for a in many
        if a.family == socket.AF_INET
    ]
    assert all(local_addresses(address) for address in own)
    with pytest.raises(ListenerError, match="does not resolve"):
        local_addresses("no-such-host.invalid")


# -- cards


class Watched(StubNvml):
    """The server is on card 3; what it uses there can be set."""

    def __init__(self, pid: int, own: int | None = 30 * GIB, fails: bool = False) -> None:
        super().__init__(own=own)
        self.slices = {}
        self.pid, self.fails = pid, fails

    def nvmlDeviceGetComputeRunningProcesses(
        self, handle: tuple[str, int]
    ) -> list[SimpleNamespace]:
        if self.fails:
            raise RuntimeError("GPU is lost")
        listed = [SimpleNamespace(pid=999_999, usedGpuMemory=10 * GIB)]
        if handle == ("gpu", 3):
            listed.append(SimpleNamespace(pid=self.pid, usedGpuMemory=self.own))
        return listed


@linux
def test_a_server_on_a_card_is_told_by_its_processes(start: Callable[..., Started]) -> None:
    """The whole card and the server's own share, each under its own name."""
    server = start(child=8)
    reading = ServerMemory("127.0.0.1", server.port, nvml=Watched(server.child)).read()
    assert reading["device"] == "cuda"
    assert (reading["device_used_peak"], reading["device_used_own"]) == (40.0, 30.0)
    assert "whole cards with other processes, 1 card" in reading["methods"]["device_used_peak"]
    assert reading["rss_peak"] > 0


@linux
def test_a_server_on_no_card_says_nothing_of_cards(start: Callable[..., Started]) -> None:
    """Cards of the host that others use are not the server's."""
    server = start()
    reading = ServerMemory("127.0.0.1", server.port, nvml=Watched(pid=1)).read()
    assert reading["device"] == "cpu"
    assert reading["device_used_peak"] is None
    assert "none of the server's processes" in reading["device_used_peak_reason"]


@linux
def test_a_card_that_is_lost_in_one_sample_loses_the_figure(start: Callable[..., Started]) -> None:
    """A peak over the other samples would be too small."""
    server = start()
    nvml = Watched(server.process.pid)
    memory = ServerMemory("127.0.0.1", server.port, nvml=nvml)
    memory.reset()
    nvml.fails = True
    memory.sample()
    nvml.fails = False
    reading = memory.read()
    assert reading["device"] == "cuda"
    assert reading["device_used_peak"] is None
    assert "GPU is lost" in reading["device_used_peak_reason"]


@linux
@pytest.mark.parametrize(
    ("held", "device", "words"),
    [
        ("/dev/nvidia0", "cuda", "NVML does not list its processes"),
        ("/dev/nvidia12", "cuda", "NVML does not list its processes"),
        ("/dev/kfd", "accelerator", "holds /dev/kfd open"),
        ("/dev/dri/renderD128", "accelerator", "holds /dev/dri/renderD128 open"),
        ("/dev/nvidiactl", "cpu", "none of the server's processes"),
        ("/dev/null", "cpu", "none of the server's processes"),
        ("/tmp/dev/nvidia0", "cpu", "none of the server's processes"),
    ],
)
def test_a_card_that_nvml_knows_nothing_of_is_no_absence(
    tmp_path: Path, held: str, device: str, words: str
) -> None:
    """In a container NVML counts pids otherwise; an open device still says where the model is."""
    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "fd" / "3").symlink_to(held)
    cards = Cards(Watched(pid=1), proc=tmp_path)
    cards.sample({7, 8})
    assert (cards.device, cards.used, cards.own) == (device, None, None)
    assert words in cards.reason


def test_an_open_device_without_nvml_is_unknown_memory(tmp_path: Path) -> None:
    """No binding: the card's memory is unknown, and the host's is not taken for it."""
    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "fd" / "3").symlink_to("/dev/nvidia0")
    cards = Cards(NO_NVML, proc=tmp_path)
    cards.sample({7})
    assert cards.device == "cuda"
    assert "NVML does not start" in cards.reason


# -- elsewhere


def remote(**given: Any) -> ServerMemory:
    return ServerMemory("192.0.2.1", 8000, **given)


def test_a_remote_server_is_unknown_unless_declared() -> None:
    """Nothing of this host is taken for it."""
    memory = remote()
    memory.reset()
    reading = memory.read()
    assert unknown(reading)
    assert "192.0.2.1 is not this host" in reading["problem"]
    assert "declared" not in reading
    assert reading["device"] == "remote"


def test_a_declared_figure_keeps_its_name_and_its_source() -> None:
    """It is beside the measured figures, never in one of them."""
    reading = remote(declared_gib=14.2, declared_source="nvidia-smi, node 7").read()
    assert unknown(reading)
    assert (reading["declared"], reading["declared_source"]) == (14.2, "nvidia-smi, node 7")
    assert reading["methods"] == {"declared": "declared: nvidia-smi, node 7"}
    assert "problem" not in reading


@pytest.mark.parametrize(
    ("scraped", "expected"),
    [
        ({"nv_gpu_memory_used_bytes": [2.0 * GIB, 3.0 * GIB]}, 5.0),
        ({"DCGM_FI_DEV_FB_USED": [1024.0, 2048.0]}, 3.0),
    ],
)
def test_memory_in_its_metrics_is_taken_with_its_name(
    scraped: dict[str, list[float]], expected: float
) -> None:
    """Bytes and MiB, over all cards; the method names the metric."""
    memory = remote(scrape=lambda: scraped)
    memory.reset()
    reading = memory.read()
    assert reading["device_used_peak"] == expected
    assert next(iter(scraped)) in reading["methods"]["device_used_peak"]
    assert reading["rss_peak"] is None


def test_the_largest_of_the_scrapes_counts() -> None:
    """Between requests; a lower one does not replace it."""
    values = iter([1.0, 3.0, 2.0])
    memory = remote(scrape=lambda: {"nv_gpu_memory_used_bytes": [next(values) * GIB]})
    memory.reset()
    memory.sample()
    assert memory.read()["device_used_peak"] == 3.0


def test_a_scrape_that_lacks_it_once_loses_the_figure() -> None:
    """A peak over some of the readings would be too small."""
    values = iter([{"nv_gpu_memory_used_bytes": [GIB]}, {}, {"nv_gpu_memory_used_bytes": [GIB]}])
    memory = remote(scrape=lambda: next(values))
    memory.reset()
    memory.sample()
    reading = memory.read()
    assert unknown(reading)
    assert "in some of the readings only" in reading["problem"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 1e300])
def test_a_scraped_figure_that_cannot_be_is_none(value: float) -> None:
    """NaN, infinity, zero, negative and absurd values are no memory."""
    assert unknown(remote(scrape=lambda: {"nv_gpu_memory_used_bytes": [value]}).read())


def test_one_process_of_several_documents_nothing() -> None:
    """The process that publishes metrics is shown with that warning, and is no figure."""
    asked: list[int] = []

    def scrape() -> dict[str, list[float]]:
        asked.append(1)
        return {"process_resident_memory_bytes": [float(GIB)]}

    memory = remote(scrape=scrape)
    memory.reset()
    memory.sample()
    reading = memory.read()
    assert unknown(reading)
    assert reading["rss_one_process"] == 1.0
    assert "documents nothing" in reading["methods"]["rss_one_process"]
    assert len(asked) == 1  # metrics without memory are not read after every request
