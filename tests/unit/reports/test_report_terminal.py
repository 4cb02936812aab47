"""The table on a terminal, in any encoding and width."""

from __future__ import annotations

import re

import pytest
from report_samples import HOSTILE, itl, passed, report, tgs, tgs_entry, ttft, undecided

from pytest_llmsla.finding import Finding
from pytest_llmsla.reports import terminal
from pytest_llmsla.reports.escape import fit, speaks_unicode

EVERYTHING = report(
    ttft(),
    itl(verdict="conditional", reason="plan kv.md, expires 2026-12-31"),
    undecided(id="medium/ttft_p95", bucket="medium"),
    passed(id="long/ttft_p95", bucket="long"),
    tgs(),
    complete=False,
    not_measured=[{"id": "long/itl_p95", "reason": "deselected"}],
    errors=[{"error": "out of memory", "count": 3, "bucket": "long"}],
    tgs=[tgs_entry(), tgs_entry(kind="peak", conditions={"sampling": {"greedy": True}})],
)


def test_it_says_what_follows_from_each_finding() -> None:
    """Stopped, sent back, on condition, not measured and errors stand apart."""
    text = terminal.render(EVERYTHING, width=160)
    parts = re.split(r"^(\w[\w ]*):$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert "short/ttft_p95" in sections["Stopped"]
    assert "medium/ttft_p95" in sections["Sent back"]
    assert "tgs/concurrency-1" in sections["Sent back"]
    assert "short/itl_p95" in sections["On condition"]
    assert "deselected" in sections["Not measured"]
    assert "bucket long: 3 × out of memory" in sections["Errors"]
    assert "long/ttft_p95" not in sections["Stopped"] + sections["Sent back"]
    assert text.splitlines()[0] == "llama2-7b-chat-4bit: FAIL, incomplete"


def test_a_tgs_figure_shows_its_four_conditions() -> None:
    """No TGS figure stands without all four, missing ones by name."""
    text = terminal.render(EVERYTHING, width=160)
    for name in ("prompt_lengths", "sampling", "concurrency", "memory"):
        assert len(re.findall(rf"^    {name}: ", text, flags=re.MULTILINE)) == 2
    assert text.count("NOT DOCUMENTED") == 3


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_no_verdict_is_lost_at_any_width(width: int) -> None:
    """Narrow terminals fold; they never cut a verdict away."""
    text = "".join(terminal.render(EVERYTHING, width=width).split())
    for word in ("FAIL", "CONDITIONAL", "INCONCLUSIVE", "PASS"):
        assert word in text


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8", "gbk", "no-such-code", None])
@pytest.mark.parametrize("text", ["✓ 短 🙂 \x81 \udc80", *HOSTILE])
def test_any_encoding_can_print_it(encoding: str | None, text: str) -> None:
    """A C locale or cp1252 console gets a text it can encode, with the same verdict."""
    found = report(ttft(id=text, bucket=text, reason=text), service=text)
    shown = terminal.render(found, width=200, unicode=speaks_unicode(encoding))
    carried = fit(shown, encoding)
    carried.encode("ascii" if encoding in (None, "no-such-code") else encoding)
    assert "FAIL" in carried
    assert not any(ch < " " or "\x7f" <= ch <= "\x9f" for ch in carried.replace("\n", ""))


def test_only_our_own_colours() -> None:
    """With colour on, the escapes are ours; those of foreign text are spelled out."""
    text = terminal.render(report(ttft(id="\x1b[5mblink")), color=True, width=200)
    assert "\\x1b[5mblink" in text
    assert "\x1b[5m" not in text
    assert "\x1b[" in text


def test_rich_markup_of_foreign_text_is_shown() -> None:
    """A name in square brackets is a name."""
    assert "[red]x[/red]" in terminal.render(report(ttft(id="[red]x[/red]")), width=200)


def test_an_observed_pass_is_marked_in_its_row() -> None:
    """A look that met its limit is never shown as a plain PASS."""
    look = passed(evidence={"preset": "observed", "min_units": None}, requests=1, units=1)
    found = report(verdict="inconclusive") | {"findings": [look.to_json()]}
    assert "PASS (observed)" in terminal.render(found, width=200)


def levels() -> list[Finding]:
    """Every kind of limit at two levels of load, undecided, passed and by plan."""
    out = []
    for n in (4, 12):
        at = {"load": f"at concurrency {n}", "concurrency": n}
        step = "" if n == 4 else f"concurrency-{n}/"
        out += [
            undecided(id=f"short/{step}ttft_p95", **at),
            passed(id=f"short/{step}itl_p95", metric="itl", rule="itl", **at),
            passed(id=f"short/{step}stall_p99", reason="over; report.conditional_passes", **at),
            tgs(id=f"tgs/concurrency-{n}", limit=60.0, percentile=50.0, lower=61.5, **at),
        ]
    return out


@pytest.mark.parametrize("width", [72, 80, 100, 140])
def test_no_verdict_and_no_id_is_broken(width: int) -> None:
    """At any usual width a verdict and an id stand on one line; a level is named once."""
    found = levels()
    text = terminal.render(report(*found), width=width).partition("Sent back:")[0]
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert text.count("INCONCLUSIVE") == 2
    assert text.count("FAIL") == 1 + 2
    for n in (4, 12):
        assert sum(f"tgs/concurrency-{n} " in line for line in lines) == 1
        assert lines.count(f"at concurrency {n}:") == 1
        assert text.count(f"at concurrency {n}") == 1
    assert len(lines) <= 4 + 2 * len(found) + 2


@pytest.mark.parametrize("width", [60, 80, 120])
def test_an_id_that_is_too_long_is_folded_and_whole(width: int) -> None:
    """The id of a test longer than the line loses no character, and its verdict none either."""
    name = "tests/test_engine.py::test_" + "x" * 90 + "/tgs/concurrency-1"
    text = terminal.render(report(tgs(id=name)), width=width).partition("Sent back:")[0]
    head, *rows = text.splitlines()[2:]
    column = slice(head.index("bucket"), head.index("observed"))
    assert "".join(row[column].strip() for row in rows) == name
    assert sum("FAIL" in row for row in rows) == 1
    assert max(map(len, rows)) <= width


def test_a_limit_that_was_not_reached_is_said_once() -> None:
    """Undecided limits of an interrupted run say why there, and are not listed again."""
    found = (undecided(), passed(id="short/itl_p95"))
    missing = [{"id": f.id, "reason": "not reached"} for f in found]
    missing.append({"id": "run", "reason": "it was interrupted"})
    text = terminal.render(report(*found, complete=False, not_measured=missing), width=200)
    back, _, rest = text.partition("Sent back:")[2].partition("Not measured:")
    assert "short/ttft_p95" in back
    assert "not reached" in back
    assert "short/ttft_p95" not in rest
    assert "short/itl_p95: not reached" in rest
    assert "run: it was interrupted" in rest
