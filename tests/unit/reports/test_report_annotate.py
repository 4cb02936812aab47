"""Annotations: at the right line, and inert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmsla.reports import annotate

REPO = annotate.Checkout(Path("/repo"), Path("/repo"))


def finding(**more: Any) -> dict[str, Any]:
    """A failed TTFT limit."""
    return {
        "id": "short/ttft_p95",
        "rule": "ttft",
        "metric": "ttft",
        "bucket": "short",
        "percentile": 95,
        "limit": 300.0,
        "unit": "ms",
        "observed": 412.6,
        "verdict": "fail",
        "reason": "5 over",
        "source": "sla.yaml:5 buckets.short.ttft_ms",
        **more,
    }


def report(*findings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A report of these."""
    policy = {"path": "/repo/gates/sla.yaml"}
    return {"verdict": "fail", "findings": list(findings), "policy": policy, **more}


@pytest.mark.parametrize(
    ("source", "policy", "where"),
    [
        ("sla.yaml:5 buckets.short.ttft_ms", "/repo/gates/sla.yaml", ("gates/sla.yaml", 5)),
        ("sla.yaml itl.p95_ms (default)", "/repo/gates/sla.yaml", ("gates/sla.yaml", 1)),
        ("test_x.py:12 @sla", "/repo/gates/sla.yaml", ("test_x.py", 12)),
        ("sla.yaml:5 x", "/elsewhere/sla.yaml", ("/elsewhere/sla.yaml", 5)),
        ("", None, ("sla.yaml", 1)),
    ],
)
def test_a_finding_has_its_place(source: str, policy: str | None, where: tuple[str, int]) -> None:
    """The file as the repository has it, and the line; a default is shown at the file's top."""
    assert annotate.place({"source": source}, policy, REPO) == where


@pytest.mark.parametrize("name", ["GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE"])
def test_a_job_may_run_anywhere_in_the_checkout(name: str) -> None:
    """Files are named from the checkout's root, wherever below it the job has gone."""
    below = annotate.Checkout.of({name: "/repo"}, Path("/repo/services"))
    assert below.name("/repo/services/chat.yaml") == "services/chat.yaml"
    assert below.name("test_chat.py") == "services/test_chat.py"
    assert below.name("/elsewhere/sla.yaml") == "/elsewhere/sla.yaml"
    for environ in ({}, {name: ""}, {name: "/other"}, {name: "relative"}):
        beside = annotate.Checkout.of(environ, Path("/repo/services"))
        assert beside.name("/repo/services/chat.yaml") == "chat.yaml"


def test_what_passes_is_not_annotated() -> None:
    """A green gate says nothing."""
    fine = report(finding(verdict="pass"), verdict="pass")
    assert annotate.github(fine, REPO) == []
    assert json.loads(annotate.code_quality([fine], REPO)) == []


def test_a_run_without_a_bad_finding_that_is_no_pass_is_annotated_all_the_same() -> None:
    """Incomplete is red, so it is shown."""
    (line,) = annotate.github(
        report(finding(verdict="pass"), verdict="inconclusive", reason="incomplete"), REPO
    )
    assert line == "::error title=sla::INCONCLUSIVE: incomplete"


def test_limits_of_one_line_are_told_apart() -> None:
    """Buckets that share a limit, and cases of one test, have titles of their own."""
    ids = ("short/itl_p95", "long/itl_p95", "t.py::test[1]/short/itl_p95")
    found = annotate.github(report(*(finding(id=i) for i in ids)), REPO)
    titles = [line.partition("title=")[2].partition("::")[0] for line in found]
    assert len(set(titles)) == len(ids)


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ("fail", "error"),
        ("error", "error"),
        ("inconclusive", "warning"),
        ("conditional", "warning"),
    ],
)
def test_only_what_stops_a_launch_is_an_error(verdict: str, kind: str) -> None:
    """The rest are warnings; the exit code is red for all of them."""
    (line,) = annotate.github(report(finding(verdict=verdict)), REPO)
    assert line.startswith(f"::{kind} file=gates/sla.yaml,line=5,")


def test_foreign_text_cannot_begin_a_command_of_its_own() -> None:
    """A server's error text with line breaks, colons and escapes stays one message."""
    evil = "boom\n::set-env name=X::y\r%0A\x1b[31m,title=z"
    lines = annotate.github(report(finding(reason=evil, bucket="a:b,c")), REPO)
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert "\x1b" not in lines[0]
    assert lines[0].count("::") == 2 + evil.count("::")
    (entry,) = json.loads(annotate.code_quality([report(finding(reason=evil))], REPO))
    assert "\x1b" not in entry["description"]


def test_many_findings_are_cut_and_counted() -> None:
    """GitHub shows ten of a step; the rest is told in one."""
    lines = annotate.github(report(*[finding() for _ in range(14)]), REPO)
    assert len(lines) == 11
    assert "4 more findings" in lines[-1]


def test_a_run_that_is_incomplete_has_an_entry_of_its_own() -> None:
    """Code Quality is never empty over a run that is no PASS."""
    given = report(finding(verdict="pass"), verdict="inconclusive", reason="incomplete")
    (entry,) = json.loads(annotate.code_quality([given], REPO))
    assert "INCONCLUSIVE: incomplete" in entry["description"]
    assert entry["location"] == {"path": "gates/sla.yaml", "lines": {"begin": 1}}
