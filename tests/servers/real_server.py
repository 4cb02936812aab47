"""Starts a real server on a free loopback port, waits until it answers, stops it for certain."""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
"""The name under which every server here serves the embedded model."""

VLLM_KEY = "sk-vllm-0123456789abcdef"
"""What the vLLM of the tests wants to be told."""

UP_S = 240.0
"""A first start on two busy cores: vLLM takes 40 s on quiet ones."""


@dataclass(frozen=True)
class Kind:
    """One system, and how it is started. ``{model}`` and ``{port}`` stand in ``start``."""

    name: str
    start: str
    """The line a user types, as docs/servers.md has it."""
    programs: Mapping[str, str]
    """What stands on this machine for the first words of ``start``, relative to the project."""
    env: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    """Options that a small machine without an accelerator needs besides."""

    def missing(self) -> str | None:
        """Why this server cannot be started here; None when it can."""
        absent = [p for p in self.programs.values() if not (ROOT / p.split()[0]).exists()]
        if not absent:
            return None
        return f"{self.name}: no {absent[0]}. Make it: bash scripts/servers.sh {self.name}"

    def command(self, model: str, port: int, more: Sequence[str]) -> list[str]:
        """The words to run."""
        words = self.start.format(model=model, port=port)
        for typed, there in self.programs.items():
            if words.startswith(typed + " "):
                programs = " ".join(str(ROOT / p) for p in there.split())
                words = programs + words.removeprefix(typed)
        return [*shlex.split(words), *self.more, *more]


TRANSFORMERS = Kind(
    "transformers",
    "transformers serve {model} --host 127.0.0.1 --port {port}",
    {"transformers": ".venv-serve/bin/python .venv/bin/transformers"},
    {"HF_HUB_OFFLINE": "1"},
)
LLAMACPP = Kind(
    "llamacpp",
    "llama-server --model {model} --host 127.0.0.1 --port {port} --metrics",
    {"llama-server": ".venv-llamacpp/bin/llama-server"},
    # Its threads would spin while they wait, and the client shares these cores.
    {"LLAMA_ARG_POLL": "0"},
)
VLLM = Kind(
    "vllm",
    "vllm serve {model} --host 127.0.0.1 --port {port}",
    {"vllm": ".venv-vllm/bin/vllm"},
    {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2"},
    ("--dtype", "bfloat16", "--max-model-len", "2048", "--enforce-eager"),
)
KINDS = {kind.name: kind for kind in (TRANSFORMERS, LLAMACPP, VLLM)}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class _OverUnix(http.client.HTTPConnection):
    """HTTP over a socket file."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class RealServer:
    """A server process with everything it started. A context manager; ``stop`` is idempotent.

    ``folder`` is where it runs: model names are relative to it, so that no answer carries a path
    of this machine.
    """

    def __init__(
        self,
        kind: Kind,
        folder: Path,
        *,
        model: str = MODEL,
        more: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        unix: Path | None = None,
    ) -> None:
        self.kind = kind
        self.unix = unix
        self.port = free_port()
        self.model = model
        self.log_path = folder / f"{kind.name}-{self.port}.log"
        command = kind.command(model, self.port, more)
        if setpriv := shutil.which("setpriv"):
            # A pytest that is killed outright takes its servers along.
            command = [setpriv, "--pdeathsig", "KILL", *command]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LLMSLA")}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**kept, "OMP_WAIT_POLICY": "PASSIVE", **kind.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``"""
        return f"http://127.0.0.1:{self.port}"

    def log(self, last: int = 200) -> str:
        """The last lines of what the server wrote."""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-last:])

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> str:
        """The body of a GET."""
        request = urllib.request.Request(self.url + path, headers=dict(headers or {}))
        with urllib.request.urlopen(request, timeout=30) as reply:
            text: str = reply.read().decode("utf-8")
        return text

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> str:
        """The body of a POST of JSON."""
        head = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data=body, headers=head)
        with urllib.request.urlopen(request, timeout=60) as reply:
            text: str = reply.read().decode("utf-8")
        return text

    def family(self) -> list[psutil.Process]:
        """The server's process and all that it started."""
        try:
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """End it the hard way, with all it started, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it, and see that nothing of it is left."""
        self._end(signal.SIGTERM)
        self._end(signal.SIGKILL)
        self.process.wait(timeout=30)

    def _end(self, how: signal.Signals) -> None:
        # Collected first: a child whose parent has gone cannot be found any more.
        family = self.family()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, how)
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                if how == signal.SIGKILL:
                    one.kill()
        _, alive = psutil.wait_procs(family, timeout=20)
        for one in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(alive, timeout=10)
        self.process.poll()  # reaped: it is no zombie

    def _answers(self) -> bool:
        """True once ``/health`` says so; it wants no key."""
        if self.unix is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        else:
            connection = _OverUnix(self.unix)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + UP_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"{self.kind.name} ended with {self.process.returncode}:\n{self.log()}"
                )
            if self._answers():
                return
            time.sleep(0.25)
        raise RuntimeError(f"{self.kind.name} does not answer after {UP_S:.0f} s:\n{self.log()}")

    def __enter__(self) -> RealServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
