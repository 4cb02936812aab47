"""report.json and the folder around it: whole or not at all, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_samples import HOSTILE, compared, passed, report, ttft, undecided

from pytest_llmsla.errors import InternalError, UsageError
from pytest_llmsla.reports import folder, json_report


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", ["observed", "evidence", "percentiles"])
def test_no_number_that_is_none(tmp_path: Path, value: float, place: str) -> None:
    """NaN and infinity are refused by name, and the earlier report still stands."""
    json_report.write(report(passed()), tmp_path)
    before = (tmp_path / "report.json").read_bytes()
    broken = report(ttft())
    broken["findings"][0][place] = value if place == "observed" else {"p95": value}
    with pytest.raises(InternalError, match=rf"report\.findings\[0\]\.{place}"):
        json_report.write(broken, tmp_path)
    assert (tmp_path / "report.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_foreign_text_comes_back_unchanged(tmp_path: Path) -> None:
    """UTF-8 JSON with CJK in the clear; controls and surrogates escaped, nothing lost."""
    given = report(ttft(id="短", notes=HOSTILE))
    path = json_report.write(given, tmp_path)
    raw = path.read_bytes()
    assert "短".encode() in raw
    assert b"\x1b" not in raw
    assert "\u202e" not in raw.decode("utf-8")
    assert json.loads(raw) == json.loads(json.dumps(given))
    assert json_report.read(path)["findings"][0]["notes"] == list(HOSTILE)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A report that cannot be written raises; it is never skipped."""
    (tmp_path / "runs").write_text("a file, not a folder")
    with pytest.raises(OSError, match="runs"):
        folder.write_reports(report(passed()), tmp_path / "runs" / "x")


def test_latest_follows_the_newest_run_and_earlier_ones_stay(tmp_path: Path) -> None:
    """Each run keeps its folder; latest points at the last one; its report tells of the others."""
    first, second = (
        tmp_path / "runs" / name for name in ("2026-11-29T10-00Z", "2026-11-29T11-00Z")
    )
    folder.write_reports(report(ttft()), first)
    (tmp_path / "runs" / "2026-11-29T10-30Z").mkdir()
    folder.write_reports(report(passed(), verdict="pass"), second)
    assert json_report.resolve_latest(tmp_path) == second.resolve()
    text = (tmp_path / "latest" / "report.md").read_text(encoding="utf-8")
    assert "2026-11-29T10-00Z: FAIL" in text
    assert "2026-11-29T10-30Z: NO REPORT, incomplete" in text
    assert (first / "report.json").exists()
    assert "none: this is the first" in (first / "report.md").read_text(encoding="utf-8")


def test_latest_without_links_is_a_text_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where links are forbidden the pointer is a file with the same path."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("links are not allowed here")

    run = tmp_path / "runs" / "a"
    json_report.write(report(passed()), run)
    json_report.point_latest(run)
    monkeypatch.setattr(Path, "symlink_to", refuse)
    pointer = json_report.point_latest(run)
    assert not pointer.is_symlink()
    assert pointer.read_text(encoding="utf-8") == "runs/a\n"
    assert json_report.resolve_latest(tmp_path) == run.resolve()
    assert json_report.resolve_latest(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"schema": "llmsla-report/9"}',
        b'{"schema": NaN}',
        b'{"schema": "llmsla-report/1", "findings": [], "family_alpha_fail": 1e999}',
        b"\xff\xfe\x00",
        b"1",
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: bytes) -> None:
    """Empty, cut, foreign and binary files are refused with what to do."""
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"report\.json"):
        json_report.read(path)
    with pytest.raises(UsageError):
        json_report.read(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("findings",), {}),
        (("findings", 0), "short/ttft_p95"),
        (("findings", 0, "requests"), "\x1b[31m5"),
        (("findings", 0, "observed"), "412.6"),
        (("findings", 0, "percentiles"), ["p95"]),
        (("findings", 0, "diagnosis"), [7]),
        (("verdict",), None),
        (("complete",), "true"),
        (("not_measured",), [{"id": 3, "reason": "x"}]),
        (("errors",), [{"bucket": None, "reason": "x", "count": True}]),
        (("service",), 7),
        (("policy",), "sla.yaml"),
        (("requests",), []),
    ],
)
def test_a_report_of_other_types_is_refused_by_place(
    tmp_path: Path, place: tuple[str | int, ...], value: object
) -> None:
    """What a report is shown from has the types of its schema; the message names what has not."""
    given = json.loads(json.dumps(report(ttft())))
    *way, last = place
    inner = given
    for key in way:
        inner = inner[key]
    inner[last] = value
    path = tmp_path / "report.json"
    path.write_text(json.dumps(given), encoding="utf-8")
    with pytest.raises(UsageError, match=r"damaged or was edited: report.*llmsla check") as raised:
        json_report.read(path)
    named = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in place]
    assert f"report{''.join(named)}" in str(raised.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"findings": [ttft().to_json()]},
        {"findings": [undecided().to_json()]},
        {"findings": [{**passed().to_json(), "verdict": "PASS"}]},
        {"not_measured": [{"id": "long/ttft_p95", "reason": "deselected"}]},
        {"baseline": compared()},
    ],
)
def test_a_report_that_says_better_of_itself_than_its_parts_is_refused(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """PASS over a finding, a comparison or a gap that is none was edited: it is never shown."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report(passed(), verdict="pass", **changes)), encoding="utf-8")
    with pytest.raises(UsageError, match="damaged or was edited: it says"):
        json_report.read(path)


def test_a_run_found_worse_than_its_limits_is_read(tmp_path: Path) -> None:
    """Slower than its baseline, or incomplete: the whole may be worse than every part."""
    for worse in ("fail", "inconclusive", "error"):
        path = json_report.write(report(passed(), verdict=worse, complete=False), tmp_path)
        assert json_report.read(path)["verdict"] == worse
