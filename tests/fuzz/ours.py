"""The product's reading of the same bytes: everything from HTTP to counting, below the socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pytest_llmsla.targets.base import Ask, Recorder
from pytest_llmsla.targets.http.choose import dialect_of
from pytest_llmsla.targets.http.spec import HttpSpec
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.wire.client import Client, Reply
from pytest_llmsla.wire.connection import Read
from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.exchange import Exchange
from pytest_llmsla.wire.payload import Payload

_KINDS = {
    "chat": {"kind": "openai", "api": "chat", "model": "m"},
    "completions": {"kind": "openai", "api": "completions", "model": "m"},
    "tgi": {"kind": "tgi"},
    "llamacpp": {"kind": "llamacpp"},
    "mii": {"kind": "mii", "api": "openai", "model": "m"},
    "mii rest": {"kind": "mii", "api": "rest", "model": "m"},
}
MAX_EVENT_BYTES = 4096


@dataclass(frozen=True)
class Result:
    """How a request ended. Stamps are offsets into the bytes: the end of the read."""

    error: str | None
    text: str = ""
    arrivals: tuple[tuple[int, int], ...] = ()
    output_tokens: int | None = None
    source: str | None = None
    estimated: bool = False
    finish: str | None = None


class _Reads:
    """A connection that gives these reads and then its end. Has what an exchange asks for."""

    used = 0
    connect_ns = 0
    kernel = True
    last_ns = 0

    def __init__(self, reads: Sequence[bytes]) -> None:
        self._left = list(reversed(reads))
        self._at = 0
        self.bytes_read = 0
        self.ends = 0

    unsent = False

    def send(self, payload: Payload) -> int:
        return -1

    def read(self) -> Read:
        if not self._left:
            self.ends += 1
            assert self.ends < 3, "the exchange reads on after the end"
            return Read(b"", self._at, "kernel")
        data = self._left.pop()
        self._at += len(data)
        self.bytes_read = self._at
        return Read(data, self._at, "kernel")

    def alive(self) -> bool:
        return True

    def fileno(self) -> int:
        return -1

    def close(self) -> None: ...


class _Below(Client):
    """A client whose connections are lists of reads."""

    reads: Sequence[bytes] = ()
    batches: Random | None = None

    def take(self, *, fresh: bool = False) -> Any:
        return _Reads(self.reads)

    def fetch(self, *args: Any, **more: Any) -> Reply:
        return Reply(200, {}, b'{"templated_text": "p", "prompt": "p"}')

    def run(self, exchange: Exchange) -> None:
        exchange.start()
        while not exchange.done:
            for _ in range(1 if self.batches is None else self.batches.choice((1, 1, 2, 5))):
                exchange.read()
                if not exchange.connection._left:  # type: ignore[attr-defined]
                    break
            exchange.parse()


def targets() -> dict[str, HttpTarget]:
    """A target of each dialect, to be used again and again."""
    out = {}
    for name, kind in _KINDS.items():
        spec = HttpSpec.from_mapping({**kind, "base_url": "http://127.0.0.1:9/v1"})
        clock: Callable[[], int] = lambda: 0  # noqa: E731
        target = HttpTarget(spec, dialect_of(spec), clock=clock, max_event_bytes=MAX_EVENT_BYTES)
        target.client.close()
        target.client = _Below(spec.address, clock=clock)
        out[name] = target
    return out


def read(target: HttpTarget, reads: Sequence[bytes], batches: Random | None = None) -> Result:
    """What the product makes of these reads. Any exception but WireError gets through."""
    client = target.client
    assert isinstance(client, _Below)
    client.reads, client.batches = reads, batches
    record = Recorder(target.clock)
    record.start()
    try:
        answer = target.generate(Ask("p", 64, {"greedy": True}), record)
    except WireError as e:
        return Result(str(e))
    return Result(
        None,
        answer.text,
        tuple(record.arrivals),
        answer.output_tokens,
        answer.token_source,
        answer.estimated is not None,
        answer.finish_reason,
    )
