"""Memory of a server behind a Unix socket: of the process that listens there, or unknown."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pytest_llmsla.probes.listener import ListenerError, again, serving_socket
from pytest_llmsla.probes.server_memory import HOW, ServerMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SO_PEERCRED is Linux's")

NO_NVML = SimpleNamespace()
"""A binding that does not start: a host without NVIDIA's driver."""

# Listens on a path, takes MiB of memory, and with "leave" hands its socket to a child and ends.
SERVER = """
import os, pathlib, socket, subprocess, sys
path, mib, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
held = b"x" * (mib << 20)
pathlib.Path(path).unlink(missing_ok=True)
s = socket.socket(socket.AF_UNIX)
s.bind(path)
s.listen()
if what == "leave":
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                             pass_fds=[s.fileno()])
    print(child.pid, flush=True)
    os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path() -> Iterator[Path]:
    """A short path: a socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="llmsla-") as folder:
        yield Path(folder) / "a.sock"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(mib: int = 8, what: str = "stay", *more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(path), str(mib), what, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield begin
    for process in running:
        if process.stdin and not process.stdin.closed:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.read()  # until whoever holds it has ended, a child that was left behind too
    process.stdout.close()
    process.wait()


def test_it_is_the_memory_of_the_process_that_listens(path: Path, start: Start) -> None:
    """With the memory it took, and of none beside it."""
    server = start(mib=40)
    reading = ServerMemory(str(path), 0, nvml=NO_NVML).read()
    assert [p["pid"] for p in reading["processes"]] == [server.pid]
    assert reading["rss_peak"] == pytest.approx(
        psutil.Process(server.pid).memory_info().rss / 2**30, rel=0.2
    )
    assert reading["rss_peak"] > 40 / 1024
    assert "problem" not in reading


def test_a_server_that_was_started_again_is_found_again(path: Path, start: Start) -> None:
    """The listener's life decides, not the path's."""
    first = start()
    tree = serving_socket(str(path))
    assert again(tree, lambda: pytest.fail("it lives")) == tree
    end(first)
    second = start()
    found = again(tree, lambda: serving_socket(str(path)))
    assert [m.pid for m in found.members] == [second.pid]


def test_a_socket_whose_first_listener_has_gone_names_nobody(path: Path, start: Start) -> None:
    """The kernel names who began to listen; the pid may be another process by now."""
    start(what="leave")
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))  # it does listen
    with pytest.raises(ListenerError, match="has ended"):
        serving_socket(str(path))


def test_a_proxy_on_a_socket_is_not_the_model(path: Path, start: Start) -> None:
    """Told by the words on its command line, as on a port."""
    start(8, "stay", "litellm")
    with pytest.raises(ListenerError, match=r"the socket .* is held by .*litellm.* passes"):
        serving_socket(str(path))


def test_where_nobody_listens_the_memory_is_unknown(path: Path) -> None:
    """A file that was left behind, or none: the reason, and what to do."""
    for make in (lambda: None, path.touch):
        make()
        reading = ServerMemory(str(path), 0, nvml=NO_NVML).read()
        assert reading["rss_peak"] is None
        assert f"who listens on the socket {path} is not told" in reading["problem"]
        assert HOW in reading["problem"]
