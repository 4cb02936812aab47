"""Event streams by the standard: whatever a server writes, and wherever a read ends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmsla.wire.errors import WireError
from pytest_llmsla.wire.sse import Event, SseDecoder
from streams.reference import events as by_the_standard


def decode(*reads: bytes, limit: int = 1 << 20) -> list[Event]:
    """The events of reads that arrived at 1, 2, 3, … ns."""
    decoder, out = SseDecoder(limit), list[Event]()
    for at, data in enumerate(reads, 1):
        out += decoder.feed(data, at)
    return out


def said(*reads: bytes) -> list[tuple[str, bytes]]:
    return [(e.name, e.data) for e in decode(*reads)]


CASES = {
    "one event": (b"data: a\n\n", [("message", b"a")]),
    "no space after the colon": (b"data:a\n\n", [("message", b"a")]),
    "one space is taken, the second is data": (b"data:  a\n\n", [("message", b" a")]),
    "a tab is data": (b"data:\ta\n\n", [("message", b"\ta")]),
    "CR": (b"data: a\r\rdata: b\r\r", [("message", b"a"), ("message", b"b")]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [("message", b"a"), ("message", b"b")]),
    "mixed line ends": (
        b"data: a\r\n\ndata: b\r\ndata: c\n\r", [("message", b"a"), ("message", b"b\nc")],
    ),
    "LF after LF CR is a line of its own": (
        b"data: a\n\r\n\ndata: b\n\n", [("message", b"a"), ("message", b"b")],
    ),
    "two data lines": (b"data: a\ndata: b\n\n", [("message", b"a\nb")]),
    "an empty data line between": (b"data: a\ndata:\ndata: b\n\n", [("message", b"a\n\nb")]),
    "data without a colon is an empty line": (b"data: a\ndata\n\n", [("message", b"a\n")]),
    "an event of empty data": (b"data:\n\n", [("message", b"")]),
    "no data, no event": (b"event: error\n\n", []),
    "its name does not outlive it": (b"event: error\n\ndata: a\n\n", [("message", b"a")]),
    "a named event": (b"event: error\ndata: a\n\n", [("error", b"a")]),
    "the last name counts": (b"event: error\nevent: x\ndata: a\n\n", [("x", b"a")]),
    "an empty name is the usual one": (b"event: error\nevent\ndata: a\n\n", [("message", b"a")]),
    "other fields": (b"id: 7\nretry: 10\nfoo: bar\nbaz\ndata: a\n\n", [("message", b"a")]),
    "names are exact": (b"Data: a\n data: b\ndatax: c\ndata : d\n\n", []),
    "comments": (b":\n\n: ping\n\ndata: a\n: in between\ndata: b\n\n", [("message", b"a\nb")]),
    "a colon in the data": (b"data: a: b\n\n", [("message", b"a: b")]),
    "BOM": (b"\xef\xbb\xbfdata: a\n\n", [("message", b"a")]),
    "a second BOM is text": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    "a BOM later is text": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [("message", b"a")]),
    "half a BOM is text": (b"\xef\xbbdata: a\n\n", []),
    "U+2028, U+2029, U+0085, VT, FF end no line": (
        "data: a\u2028b\u2029c\u0085d\x0be\x0cf\x1eg\n\n".encode(),
        [("message", "a\u2028b\u2029c\u0085d\x0be\x0cf\x1eg".encode())],
    ),
    "not even a CR as U+0D0A": ("data: \u0d0a\n\n".encode(), [("message", "\u0d0a".encode())]),
    "NUL": (b"data: a\0b\n\n", [("message", b"a\0b")]),
    "bytes that are no UTF-8": (b"data: \xff\xc3\n\n", [("message", b"\xff\xc3")]),
    "without its blank line": (b"data: a\n\ndata: b\n", [("message", b"a")]),
    "without its line end": (b"data: a\n\ndata: b", [("message", b"a")]),
    "nothing": (b"", []),
    "blank lines only": (b"\n\r\n\r\r\n\n", []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_by_the_standard(name: str) -> None:
    """Each rule once, and the slow reading of the tests agrees that it is one."""
    body, expected = CASES[name]
    assert said(body) == expected
    assert by_the_standard(body) == expected


@pytest.mark.parametrize("name", CASES)
def test_where_a_read_ends_changes_nothing(name: str) -> None:
    """Cut at every byte, at every two bytes, and byte by byte, with empty reads between."""
    body, expected = CASES[name]
    assert said(*(body[i : i + 1] for i in range(len(body)))) == expected
    for i in range(len(body) + 1):
        assert said(body[:i], b"", body[i:]) == expected
        for j in range(i, len(body) + 1):
            assert said(body[:i], body[i:j], body[j:]) == expected


PIECES = st.sampled_from(
    [b"data:", b"data", b"event:", b"id:", b":", b" ", b"a", b"{", b"\n", b"\r", b"\r\n", b"\n\n",
     b"\xef\xbb\xbf", "\u2028".encode(), b"\0", b"error", b"\xc3"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=40).map(b"".join), st.lists(st.integers(0, 120), max_size=8))
def test_any_bytes_read_anyhow_are_the_events_of_the_standard(body: bytes, cuts: list[int]) -> None:
    """The decoder and the slow reading never differ."""
    edges = [0, *sorted(min(c, len(body)) for c in cuts), len(body)]
    assert said(*(body[a:b] for a, b in pairwise(edges))) == by_the_standard(body)


def test_an_event_is_stamped_when_its_last_byte_came() -> None:
    """Neither at its first byte nor when its line ended, but at its blank line; CRLF at the CR."""
    reads = [b"data: a", b"\n", b"\nda", b"ta: b\r\n", b"\r", b"\ndata: c\n\ndata: d\n\n"]
    assert [(e.t_ns, e.data) for e in decode(*reads)] == [
        (3, b"a"), (5, b"b"), (6, b"c"), (6, b"d"),
    ]  # fmt: skip


def test_comments_are_counted() -> None:
    """Pings are seen, and are nothing else."""
    decoder = SseDecoder()
    assert decoder.feed(b": ping\n\n:\n:a", 1) == []
    assert decoder.comments == 2
    decoder.feed(b"\n", 2)
    assert decoder.comments == 3


def ends(reads: list[bytes], limit: int) -> tuple[list[bytes], bool]:
    """Data of the events before the end, and whether it ended as too long."""
    decoder, out = SseDecoder(limit), list[bytes]()
    for data in reads:
        try:
            out += [e.data for e in decoder.feed(data, 1)]
        except WireError:
            return out, True
    return out, decoder.failed is not None


LONG = {
    "a line of data": (b"data: " + b"x" * 100 + b"\n\n", True),
    "many lines of data": (b"data: x\n" * 20 + b"\n", True),
    "a comment": (b":" + b"x" * 100 + b"\n", True),
    "a field nobody knows": (b"foo: " + b"x" * 100 + b"\n", True),
    "a line that does not end": (b"data: " + b"x" * 100, True),
    "exactly the limit": (b"data: " + b"x" * 58 + b"\n\n", False),
    "one more": (b"data: " + b"x" * 59 + b"\n\n", True),
    "many comments": (b": ping\n" * 100, False),
    "many blank lines": (b"\n" * 1000, False),
    "many events": (b"data: x\n\n" * 100, False),
    "comments inside an event": (b"data: x\n" + b": ping\n" * 100 + b"\n", False),
}


@pytest.mark.parametrize("name", LONG)
def test_memory_is_bounded_by_the_longest_event_not_by_the_stream(name: str) -> None:
    """Too long is told, however it was read; the whole events before it are given."""
    body, refused = LONG[name]
    whole = b"data: first\n\n" + body + b"data: last\n\n"
    one = ends([whole], 64)
    assert one[1] is refused
    assert one[0][0] == b"first"
    assert (one[0][-1] == b"last") is (not refused)
    for step in (1, 2, 3, 7, 64, 65):
        assert ends([whole[i : i + step] for i in range(0, len(whole), step)], 64) == one


def test_after_a_refusal_nothing_is_taken_or_kept() -> None:
    """Every later feed says the same."""
    decoder = SseDecoder(64)
    with pytest.raises(WireError):
        decoder.feed(b"x" * 100, 1)
    with pytest.raises(WireError, match="limit of 64"):
        decoder.feed(b"\n\ndata: a\n\n", 2)
    assert decoder.left_over() == b""


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b"data: a\n\n", b""),
        (b"data: a\n\n: ping\n", b""),
        (b"data: a\n\ndata: b\n", b"data: b"),
        (b"data: a\n\ndata: b\nda", b"data: b\nda"),
        (b'{"error": "busy"}', b'{"error": "busy"}'),
        (b"data: a\n\n\r\n \n", b""),
    ],
)
def test_what_no_blank_line_ended_can_be_looked_at(body: bytes, left: bytes) -> None:
    """A stream that stops inside an event shows it; nothing of it counts as one."""
    decoder = SseDecoder()
    decoder.feed(body, 1)
    assert decoder.left_over() == left


def test_sixteen_mebibytes_a_byte_at_a_time_are_no_work_to_speak_of() -> None:
    """Each byte is looked at once: a slow line costs its length, not its square."""
    decoder = SseDecoder()
    decoder.feed(b"data: ", 1)
    block = b"x" * 1024
    for _ in range(16 * 1024 - 1):
        assert decoder.feed(block, 2) == []
    [event] = decoder.feed(b"\n\n", 3)
    assert len(event.data) == 1024 * (16 * 1024 - 1)
