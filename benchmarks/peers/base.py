"""What every client is given and gives back."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from truth.analysis import Run

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
_SAMPLE_S = 0.25

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Load:
    """One run: every ask once, ``concurrency`` at a time. Asks that warm up come first."""

    url: str
    """Below it are ``/v1/chat/completions`` and ``/v1/models``."""
    concurrency: int
    asks: tuple[tuple[str, str], ...]
    """Key and prompt; the prompt holds ``key=`` and the key."""
    tokens: int
    core: int | None
    folder: Path
    timeout_s: float = 120.0

    @classmethod
    def of(
        cls, url: str, concurrency: int, rounds: int, tokens: int, core: int | None, folder: Path
    ) -> Load:
        """``rounds`` judged requests a stream after one that warms up."""
        keys = [f"w{i}" for i in range(concurrency)]
        keys += [f"m{i}" for i in range(concurrency * rounds)]
        asks = tuple(
            (k, f"key={k} Say how the sea looked that morning, word by word.") for k in keys
        )
        return cls(url, concurrency, asks, tokens, core, folder)


class Failed(Exception):  # noqa: N818 - an outcome, told in the table
    """A client ended without a result; the message says how."""


class Peer(Protocol):
    """One client."""

    name: str
    quick: bool
    """Starts within a second: can be run often."""

    def version(self) -> str:
        """Its version.

        Raises:
            Absent: it is not installed.
        """
        ...

    def run(self, load: Load, records: Callable[[], Records]) -> tuple[Run, Watched]:
        """Put the load on the server and read what the client says.

        Raises:
            Failed: no result.
        """
        ...


class Absent(Exception):  # noqa: N818 - an outcome, told in the table
    """Not installed here; the message says what is missing."""


@dataclass(frozen=True)
class Watched:
    """What a process and its children used: (ns, CPU seconds so far)."""

    samples: tuple[tuple[int, float], ...] = field(default=())
    unreaped_s: float = 0.0
    """CPU seconds of those among them that nobody waited for: the system does not tell them."""


def environment(name: str) -> Path:
    """The folder of a peer's own virtual environment.

    Raises:
        Absent: there is none, or no Python in it.
    """
    found = ROOT / f".venv-{name}"
    if not (found / "bin" / "python").exists():
        raise Absent(f"no {found.name}; make one and install {name} in it")
    return found


def installed(name: str, *distributions: str) -> str:
    """Version of the first of ``distributions`` in a peer's environment.

    Raises:
        Absent: none is installed.
    """
    python = environment(name) / "bin" / "python"
    code = (
        "import importlib.metadata as m, sys\n"
        "for n in sys.argv[1:]:\n"
        "    try: print(n, m.version(n)); break\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    done = subprocess.run(
        [python, "-c", code, *distributions], capture_output=True, text=True, check=False
    )
    if not done.stdout.strip():
        raise Absent(f"{' or '.join(distributions)} is not in .venv-{name}")
    return done.stdout.strip()


def watch(command: Sequence[object], load: Load, env: Mapping[str, str] | None = None) -> Watched:
    """Run a client on its core to its end; its output goes to ``client.txt``.

    Raises:
        Failed: exit code not 0, or it took longer than ``load.timeout_s``.
    """
    said = load.folder / "client.txt"
    with said.open("wb") as out:
        process = psutil.Popen(
            [str(c) for c in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=load.folder,
            env={**_plain_env(), **(env or {})},
            start_new_session=True,
        )
        if load.core is not None:
            process.cpu_affinity([load.core])
        before = _children_s()
        try:
            samples = _sample(process, load.timeout_s)
        finally:
            _end(process)
    # What it used after the last look, and what children used that ended in between.
    reaped = _children_s() - before
    total = max(reaped, samples[-1][1] if samples else 0.0)
    samples.append((time.perf_counter_ns(), total))
    if process.returncode != 0:
        raise Failed(f"exit code {process.returncode}: {_last_line(said)}")
    return Watched(tuple(samples), total - reaped)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _plain_env() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_COLOR": "1",
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
    }


def _sample(process: psutil.Popen, timeout_s: float) -> list[tuple[int, float]]:
    used: dict[int, float] = {}
    samples: list[tuple[int, float]] = []
    until = time.monotonic() + timeout_s
    family: list[psutil.Process] = [process]
    turn = 0
    while process.poll() is None:
        if turn % 4 == 0:
            family = _family(process)
        turn += 1
        for one in family:
            try:
                times = one.cpu_times()
            except psutil.Error:
                continue
            used[one.pid] = times.user + times.system
        samples.append((time.perf_counter_ns(), sum(used.values())))
        if time.monotonic() > until:
            raise Failed(f"not done after {timeout_s:g} s")
        time.sleep(_SAMPLE_S)
    return samples


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _end(process: psutil.Popen) -> None:
    family = _family(process) if process.poll() is None else []
    for one in family:
        try:
            one.kill()
        except psutil.Error:
            continue
    process.wait()


def _last_line(said: Path) -> str:
    lines = said.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


def read_json(path: Path) -> Any:
    """A result file.

    Raises:
        Failed: it is not there.
    """
    if not path.exists():
        raise Failed(f"wrote no {path.name}: {_last_line(path.parent / 'client.txt')}")
    return json.loads(path.read_text("utf-8"))


def one_file(folder: Path, pattern: str) -> Path:
    """The one file below ``folder`` that matches.

    Raises:
        Failed: there is none.
    """
    found = sorted(folder.rglob(pattern))
    if not found:
        raise Failed(f"wrote no {pattern}: {_last_line(folder / 'client.txt')}")
    return found[-1]


def python() -> str:
    """The interpreter that runs the benchmark, and our client."""
    return sys.executable
