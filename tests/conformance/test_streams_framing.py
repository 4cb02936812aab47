"""What HTTP may wrap an answer in, and what breaks it, through real sockets."""

from __future__ import annotations

import pytest

from streams.runner import judge
from streams.samples import (
    BODY,
    CASE,
    CHUNKED,
    CUT,
    END,
    EVENTS,
    asked,
    assert_failed,
    assert_sound,
    at_once,
    chunked,
    framed,
)
from streams.script import Answer, Step

HALF = len(BODY) - 20
STATUS = b"HTTP/1.1 200 OK\r\n"
TRAILERS = b"0\r\ncontent-type: text/html\r\ncontent-encoding: gzip\r\nage: 9\r\n"

FINE = {
    "content length": framed(f"content-length: {len(BODY)}"),
    "content length, more follows": framed(f"content-length: {len(BODY)}") + b"HTTP/1.1 200 OK",
    "content length too long, end marker seen": framed(f"content-length: {len(BODY) + 9}"),
    "one chunk": framed(CHUNKED, body=chunked(BODY) + END),
    "a chunk a byte": framed(CHUNKED, body=chunked(*(bytes([b]) for b in BODY)) + END),
    "chunks cut anywhere": framed(CHUNKED, body=chunked(BODY[:7], BODY[7:99], BODY[99:]) + END),
    "chunk extensions": framed(
        CHUNKED, body=b'%x;a=b;c="d;e"\r\n%b\r\n0;last\r\n\r\n' % (len(BODY), BODY)
    ),
    "chunk sizes in capitals, with zeros": framed(
        CHUNKED, body=b"000%X\r\n%b\r\n000\r\n\r\n" % (len(BODY), BODY)
    ),
    "trailers": framed(CHUNKED, body=chunked(BODY) + b"0\r\nx-took: 5\r\nserver: x\r\n\r\n"),
    "no last chunk, end marker seen": framed(CHUNKED, body=chunked(BODY)),
    "until close": framed("connection: close"),
    "until close, keep-alive all the same": framed("connection: keep-alive"),
    "HTTP/1.0": framed(status="HTTP/1.0 200 OK"),
    "HTTP/1.0 with a length": framed(f"content-length: {len(BODY)}", status="HTTP/1.0 200 OK"),
    "no reason phrase": framed(CHUNKED, body=chunked(BODY) + END, status="HTTP/1.1 200 "),
    "an odd reason phrase": framed(status="HTTP/1.1 200 Sure, why not? \xe9"),
    "header names in capitals": framed("TRANSFER-ENCODING: CHUNKED", body=chunked(BODY) + END),
    "odd header names": framed("x_y.z~1: a", "X-Empty:", "x-tab:\ta\t", "x-none:a"),
    "a header twice": framed("set-cookie: a=b", "set-cookie: c=d"),
    "header bytes above ASCII": framed("x-name: \xe9\xff"),
    "a header of 20 kB": framed("x-long: " + "y" * 20_000),
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    + framed(CHUNKED, body=chunked(BODY) + END),
    "identity, named": framed("content-encoding: identity"),
    "trailers that look like headers": framed(CHUNKED, body=chunked(BODY) + TRAILERS + b"\r\n"),
    "a hundred interim answers": b"HTTP/1.1 102 Processing\r\n\r\n" * 100
    + framed(CHUNKED, body=chunked(BODY) + END),
    "a charset in quotes": STATUS + b'content-type: text/event-stream ;charset="utf-8"\r\n\r\n'
    + BODY,
    "nothing out of a cache": framed("age: 0", "x-cache: MISS", "x-prompt-cache: hit"),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_every_sound_framing_is_read(name: str) -> None:
    """The answer is whole, however HTTP wraps it; the bytes came at 100 ms."""
    ran = asked(at_once(FINE[name]))
    assert_sound(ran)
    assert ran.t.ttft_ms == 100


NO_HTTP = "http|header|framing"
BROKEN: dict[str, tuple[bytes, str]] = {
    "content length too short": (framed(f"content-length: {HALF - 200}"), CUT),
    "a body cut below its length": (framed(f"content-length: {len(BODY)}", body=BODY[:150]), CUT),
    "a chunk cut": (framed(CHUNKED, body=chunked(BODY)[:150]), CUT),
    "two content lengths": (framed("content-length: 9", "content-length: 8"), NO_HTTP),
    "a negative content length": (framed("content-length: -1"), NO_HTTP),
    "a content length in words": (framed("content-length: many"), NO_HTTP),
    "a chunk size that is none": (framed(CHUNKED, body=b"xyz\r\n" + BODY), NO_HTTP),
    "a chunk size beyond all": (framed(CHUNKED, body=b"f" * 17 + b"\r\n" + BODY), NO_HTTP),
    "a chunk longer than its size": (
        framed(CHUNKED, body=b"%x\r\n%b\r\n" % (120, BODY)), NO_HTTP,
    ),
    "coded in another way, then chunked": (
        framed("transfer-encoding: gzip, chunked", body=chunked(BODY) + END), "coding|encod|http",
    ),
    "chunked twice": (
        framed(CHUNKED, CHUNKED, body=chunked(BODY) + END), "coding|encod|http",
    ),
    "a coding behind a space that is none": (
        framed("transfer-encoding:\xa0chunked", body=chunked(BODY) + END), "coding|encod|http",
    ),
    "a content type behind a space that is none": (
        b"HTTP/1.1 200 OK\r\ncontent-type:\xa0text/event-stream\r\n\r\n" + BODY, "content type",
    ),
    "compressed": (framed("content-encoding: gzip"), "compress"),
    "headers of 100 kB": (framed("x-long: " + "y" * 100_000), "header"),
    "headers of 100 kB, many": (framed(*["x-long: " + "y" * 1000] * 100), "header"),
    "a header with a NUL": (framed("x-nul: a\0b"), NO_HTTP),
    "a header line without a colon": (framed("nonsense"), NO_HTTP),
    "no status": (framed(status="HTTP/1.1"), NO_HTTP),
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n", NO_HTTP),
    "TLS to a plain client": (b"\x15\x03\x01\x00\x02\x02\x46", NO_HTTP),
    "an older HTTP": (BODY, NO_HTTP),
    "half of the headers": (framed()[:30], "closed|ended|connection"),
    "only an interim answer": (b"HTTP/1.1 100 Continue\r\n\r\n", "closed|ended|connection"),
    "a switch of protocols": (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        "protocol|101",
    ),
    "a chunk size in Python's way": (framed(CHUNKED, body=b"0x9\r\n" + BODY), NO_HTTP),
    "a chunk size with a sign": (framed(CHUNKED, body=b"+9\r\n" + BODY), NO_HTTP),
    "a negative chunk size": (framed(CHUNKED, body=b"-9\r\n" + BODY), NO_HTTP),
    "chunks without line ends between": (
        framed(CHUNKED, body=b"".join(b"%x\r\n%b" % (len(e), e) for e in EVENTS) + END), NO_HTTP,
    ),
    "trailers without end": (
        framed(CHUNKED, body=chunked(BODY[:150]) + b"0\r\n" + b"x: y\r\n" * 20_000),
        "header|truncated",
    ),
    "content lengths in a list": (framed("content-length: 9, 9"), NO_HTTP),
    "a content length with a sign": (framed("content-length: +9"), NO_HTTP),
    "a content length of 0": (framed("content-length: 0", body=b""), CUT),
    "interim answers without end": (b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n" * 5000, "header"),
    "two content types": (framed("content-type: application/json"), "content type"),
    "a content type with another behind it": (
        STATUS + b"content-type: text/event-stream, text/html\r\n\r\n" + BODY, "content type",
    ),
    "compressed by brotli": (framed("content-encoding: br"), "compress"),
    "compressed, after identity": (framed("content-encoding: identity, gzip"), "compress"),
    "compressed in transfer": (framed("transfer-encoding: gzip"), "coding|http"),
    "an old answer": (framed("age: 77"), "cache of answers"),
    "an answer out of a cache": (framed("x-cache: Hit from elsewhere"), "cache of answers"),
    "an answer out of a gateway's cache": (framed("cf-aig-cache-status: HIT"), "cache of answers"),
    "a status of four digits": (framed(status="HTTP/1.1 2000 OK"), NO_HTTP),
    "a status of two digits": (framed(status="HTTP/1.1 20 OK"), NO_HTTP),
    "a page that is no stream": (
        STATUS + b"content-type: text/html\r\n\r\n<html>down for maintenance</html>",
        "not streamed",
    ),
    "one JSON document": (
        STATUS + b'content-type: application/json\r\n\r\n{"choices":[]}', "not streamed",
    ),
    "a JSON document without end": (
        STATUS + b"content-type: application/json\r\n\r\n" + b" " * 2_000_000, "not streamed",
    ),
    "status 205": (framed(status="HTTP/1.1 205 Reset Content"), "205"),
    "status 304": (b"HTTP/1.1 304 Not Modified\r\n\r\n", "304"),
    "status 204": (b"HTTP/1.1 204 No Content\r\n\r\n", "204"),
    "status 206": (framed(status="HTTP/1.1 206 Partial Content"), "206"),
    "status 999": (framed(status="HTTP/1.1 999 Odd"), "999|http"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_every_broken_framing_is_an_error(name: str) -> None:
    """Named, never a sample, whatever stood in the bytes."""
    raw, words = BROKEN[name]
    ran = asked(at_once(raw))
    assert_failed(ran, words)
    assert ran.posts == 1
    found = judge(CASE, [ran.t])
    assert {f.verdict for f in found.values()} == {"error"}


@pytest.mark.parametrize(
    "raw",
    [
        framed(CHUNKED, "content-length: 9", body=chunked(BODY) + END),
        framed(*[f"content-length: {len(BODY)}"] * 2),
        framed("x-folded: a", "  b"),
    ],
    ids=["a length beside chunks", "the same length twice", "a folded header"],
)
def test_what_a_client_may_refuse_or_read_is_one_of_both(raw: bytes) -> None:
    """RFC 9112, 5.2 and 6.3: an error, or the whole answer; nothing between."""
    ran = asked(at_once(raw))
    if ran.t.status == "ok":
        assert_sound(ran)
    else:
        assert_failed(ran, NO_HTTP)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 11, 64])
def test_segments_cut_anywhere_change_nothing_but_the_stamps(n: int) -> None:
    """Head, chunks and events in segments of n bytes, 1 ms apart: each token at its last byte."""
    raw = framed(CHUNKED, body=chunked(*EVENTS) + END)
    steps = [Step(i // n + 1, raw[i : i + n]) for i in range(0, len(raw), n)]
    ran = asked(Answer((*steps, Step(10_000, b"", "eof"))))
    assert_sound(ran)
    # The blank line that ends an event is followed by the line end of its chunk.
    lasts = [raw.index(chunked(e)) + len(chunked(e)) - 3 for e in EVENTS[1:4]]
    stamps = [(at - ran.t.start_ns) // 10**6 for at, _ in ran.t.arrivals]
    assert stamps == [last // n + 1 for last in lasts]
