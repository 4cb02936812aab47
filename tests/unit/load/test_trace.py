"""Recorded traces: every shape that teams have, and a clear word where one means nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmsla.errors import UsageError
from pytest_llmsla.workload.trace import Trace, TraceEntry, nearest_range, read_trace

MS = 1_000_000


def written(tmp_path: Path, name: str, text: str) -> Path:
    """A trace file."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "unit"),
    [
        ("t.jsonl", '{"at_s": 5, "input_length": 90}\n\n{"at_s": 5.25}\n', None),
        ("t.jsonl", '{"timestamp_ms": 250}\n{"timestamp_ms": 0, "prompt_tokens": 90}\n', None),
        ("t.jsonl", '{"timestamp": 1000, "input_length": 90}\n{"timestamp": 1250}\n', "ms"),
        ("t.csv", "at_s,input_length\n1,90\n1.25,\n", None),
        (
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,90,10\n2023-11-16 18:15:46.9305900,,7\n",
            None,
        ),
        ("t.csv", "\ufefftimestamp,input_length\r\n20260101,90\r\n20260351,\r\n", "ms"),
        ("t.csv", '"at_s","input_length"\n"1.25",\n"1","90"\n', None),
        (
            "t.jsonl",
            '{"timestamp": "2026-01-01T00:00:00Z", "input_tokens": 90}\n'
            '{"timestamp": "2026-01-01T01:00:00.25+01:00"}\n',
            None,
        ),
    ],
)
def test_times_count_from_the_first_request(
    tmp_path: Path, name: str, text: str, unit: str | None
) -> None:
    """Seconds, milliseconds and dates of any zone, in any order, are the same trace."""
    entries = read_trace(written(tmp_path, name, text), unit).entries
    assert entries == (TraceEntry(0, 90), TraceEntry(250 * MS, None))


@pytest.mark.parametrize(
    ("text", "unit", "words"),
    [
        ("", None, "holds no request"),
        ('{"timestamp": 3}', None, "trace_unit"),
        ('{"when": 3}', None, "has no time"),
        ('{"at_s": -1}', None, "number from 0"),
        ('{"at_s": true}', None, "number from 0"),
        ('{"at_s": NaN}', None, "number from 0"),
        ('{"timestamp": "soon"}', "s", "number from 0"),
        ('{"at_s": 1, "input_length": 1.5}', None, "whole number"),
        ('{"at_s": 1, "input_length": 0}', None, "whole number"),
        ("[1]", None, "no object"),
        ("at_s,1", None, "not JSON"),
        ("[" * 100_000, None, "not JSON"),
        ('{"at_s": 1}\n{"at_s": 1e9}', None, "more than a year"),
        ('{"timestamp": 1}\n{"timestamp": "2026-01-01"}', "s", "more than a year"),
        ('{"at_ms": 1e13}', None, "under 10000000000000, in ms"),
        ('{"at_s": ' + "9" * 400 + "}", None, "number from 0"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(
    tmp_path: Path, text: str, unit: str | None, words: str
) -> None:
    """Nothing is guessed: a unit, a time or a length that is unclear is told with the file."""
    with pytest.raises(UsageError, match=words):
        read_trace(written(tmp_path, "t.jsonl", text), unit)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("at_s\n\x00\n", "NUL|number from 0"),
        ("at_s;input_length\n1;2\n", "has no time.*It has: at_s;input_length"),
        ("1,2\n3,4\n", "has no time"),
        ("at_s\n1\n \n", r"t\.csv:3: at_s is ' '"),
        ("at_s\n", "holds no request"),
        ('at_s\n"' + "1" * 200_000 + '"\n', "no table|number from 0"),
    ],
)
def test_a_table_that_means_nothing_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Other separators, no header, a blank line within: told with what was found."""
    with pytest.raises(UsageError, match=words):
        read_trace(written(tmp_path, "t.csv", text))


def test_a_trace_is_known_by_its_content(tmp_path: Path) -> None:
    """Not by its name: the hash is that of the bytes, and another content is refused."""
    path = written(tmp_path, "t.jsonl", '{"at_s": 1}\n{"at_s": 4}\n')
    trace = read_trace(path)
    assert trace.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert trace.facts() == {
        "trace_sha256": trace.sha256,
        "trace_requests": 2,
        "trace_span_s": 3.0,
    }
    assert read_trace(path, sha256=trace.sha256) == trace
    path.write_text('{"at_s": 1}\n{"at_s": 5}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"trace_sha256\): it was changed"):
        read_trace(path, sha256=trace.sha256)


@given(
    times=st.lists(st.integers(0, 10**6), min_size=2, max_size=50).filter(
        lambda t: len(set(t)) > 1
    ),
    rate=st.floats(0.01, 10_000),
)
def test_another_rate_stretches_all_times_alike(times: list[int], rate: float) -> None:
    """Its mean rate is the one asked for, and every gap keeps its share of the whole."""
    first = min(times)
    trace = Trace(tuple(TraceEntry((t - first) * MS, None) for t in sorted(times)), "0")
    found = trace.at_rate(rate)
    assert found.rate == pytest.approx(rate, rel=1e-3)
    for was, now in zip(trace.entries, found.entries, strict=True):
        share = was.at_ns / trace.span_ns
        assert now.at_ns == pytest.approx(share * found.span_ns, abs=2)


@pytest.mark.parametrize("n", [1, 5])
def test_what_comes_at_one_moment_has_no_rate(n: int) -> None:
    """Nothing can be stretched: it is said, not divided by zero."""
    trace = Trace((TraceEntry(0, None),) * n, "0")
    assert (trace.rate, trace.cycle_ns) == (None, 0)
    with pytest.raises(UsageError, match="all come at one moment"):
        trace.at_rate(3.0)


def test_requests_belong_to_the_bucket_of_their_length_or_the_nearest() -> None:
    """Those without a length are mixed by weight; those beyond every bucket are counted."""
    ranges = {"short": (1, 128), "long": (129, 512)}
    lengths = [1, 128, 129, 512, 9_000, None, None, None]
    trace = Trace(tuple(TraceEntry(k * MS, n) for k, n in enumerate(lengths)), "ab")
    assert trace.shares(ranges, {"short": 2.0, "long": 1.0}) == {"short": 4.0, "long": 4.0}
    assert "1 of them are of lengths that no bucket has (1–9000 tokens" in trace.words(ranges)
    assert [nearest_range(n, ranges) for n in lengths[:6]] == [
        "short", "short", "long", "long", "long", None,
    ]  # fmt: skip


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    """Both are usage errors that name the key."""
    with pytest.raises(UsageError, match=r"workload\.load\.trace"):
        read_trace(tmp_path / "none.jsonl")
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(UsageError, match="UTF-8"):
        read_trace(path)
