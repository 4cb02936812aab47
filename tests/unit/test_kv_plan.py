from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from pytest_llmsla.policy.kv_plan import KvPlan, KvPlanProblem, load_kv_plan

TODAY = datetime.date(2026, 3, 1)

YAML = """\
cause: KV reads outgrow the cache past 900 tokens
measures: [paged attention, shorter system prompt]
owner: Li Wei
expires: 2026-03-31
"""
FRONT = f"---\n{YAML}---\n# Plan\nAny text: with a colon.\n"
HEADINGS = """\
# KV-cache plan: chat service
<!-- cause: TODO -->
## Cause
KV reads outgrow the cache
past 900 tokens
## Measures
1. paged attention
2. shorter
   system prompt
## Owner
Li Wei
## Expires
2026-03-31
## Notes
TODO: nothing that counts
"""
PAIRS = """\
**Cause:** KV reads outgrow the cache past 900 tokens
**Measures**:
- paged attention
- shorter system prompt
- **Owner:** Li Wei
Expires: 2026-03-31
"""
CHINESE = """\
# KV Cache 优化方案
原因：超过 900 token 后缓存未命中
## 措施
- 分页注意力
- 缩短系统提示词
负责人：李
有效期：2026-03-31
"""


def plan(folder: Path, text: str | bytes, name: str = "plan.md") -> KvPlan:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_kv_plan(path, TODAY)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.yaml", YAML),
        ("plan.md", FRONT),
        ("plan.md", HEADINGS),
        ("plan.md", PAIRS),
        ("plan.txt", YAML.replace("[paged attention, ", "paged attention; ").replace("]", "")),
    ],
    ids=["yaml", "front matter", "headings", "pairs", "plain"],
)
def test_every_form_gives_the_same_plan(tmp_path: Path, name: str, text: str) -> None:
    """A plan is its four fields, whatever file they are written in."""
    found = plan(tmp_path, text, name)
    assert found.cause == "KV reads outgrow the cache past 900 tokens"
    assert found.measures == ("paged attention", "shorter system prompt")
    assert found.owner == "Li Wei"
    assert found.expires == datetime.date(2026, 3, 31)
    assert found.summary() == (
        "cause: KV reads outgrow the cache past 900 tokens; measures: paged attention, shorter "
        "system prompt; owner: Li Wei; expires 2026-03-31"
    )


def test_a_chinese_plan_is_read(tmp_path: Path) -> None:
    """Field names, full-width colons and one-character names as Chinese teams write them."""
    found = plan(tmp_path, CHINESE)
    assert found.cause == "超过 900 token 后缓存未命中"
    assert found.measures == ("分页注意力", "缩短系统提示词")
    assert found.owner == "李"


def test_a_plan_holds_through_its_last_day(tmp_path: Path) -> None:
    """Expiry is a date, not a moment."""
    assert plan(tmp_path, YAML.replace("2026-03-31", "2026-03-01")).expires == TODAY
    with pytest.raises(KvPlanProblem, match="expired on 2026-02-28; today is 2026-03-01"):
        plan(tmp_path, YAML.replace("2026-03-31", "2026-02-28"))


@pytest.mark.parametrize("field", ["cause", "measures", "owner", "expires"])
@pytest.mark.parametrize("name", ["plan.yaml", "plan.md"])
def test_a_missing_or_empty_field_is_named(tmp_path: Path, field: str, name: str) -> None:
    """None of the four can be left out, in no form."""
    lines = YAML.splitlines()
    without = "\n".join(line for line in lines if not line.startswith(field))
    emptied = "\n".join(f"{field}:" if line.startswith(field) else line for line in lines)
    for text in (without, emptied):
        with pytest.raises(KvPlanProblem, match=field):
            plan(tmp_path, text, name)


@pytest.mark.parametrize(
    "words",
    [
        "TODO",
        "tbd.",
        "…",
        "...",
        "-",
        "n/a",
        "None",
        "?",
        "待定",
        "<owner>",
        "[owner]",
        "xxx",
        "''",
    ],
)
@pytest.mark.parametrize("field", ["cause", "measures", "owner"])
def test_placeholders_are_no_plan(tmp_path: Path, field: str, words: str) -> None:
    """A template that nobody filled in never turns FAIL into conditional."""
    text = "\n".join(
        f"{field}: {words}" if line.startswith(field) else line for line in YAML.splitlines()
    )
    with pytest.raises(KvPlanProblem, match=field):
        plan(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\n",
        "# Plan\n\nWe will make it faster.\n",
        YAML.replace("[paged attention, shorter system prompt]", "[]"),
        YAML.replace("shorter system prompt", "TODO"),
        YAML.replace("shorter system prompt", "check (TBD)"),
        YAML.replace("2026-03-31", "2026-02-30"),
        YAML.replace("2026-03-31", "31.03.2026"),
        YAML.replace("2026-03-31", "soon"),
        YAML.replace("2026-03-31", "2026-03-31 or later"),
        f"{YAML}expires: 2099-01-01\n",
    ],
)
@pytest.mark.parametrize("name", ["plan.yaml", "plan.md"])
def test_what_is_no_plan_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """Prose, empty lists, unusable dates and contradictions are problems, told in words."""
    with pytest.raises(KvPlanProblem, match=r"plan\."):
        plan(tmp_path, text, name)


def test_front_matter_and_body_may_not_disagree(tmp_path: Path) -> None:
    """Two owners are no owner."""
    with pytest.raises(KvPlanProblem, match="gives owner twice, differently"):
        plan(tmp_path, FRONT.replace("# Plan", "Owner: Somebody Else"))


def test_an_unreadable_plan_is_a_problem(tmp_path: Path) -> None:
    """Missing, a folder, another encoding, binary, broken YAML: never a crash, never a plan."""
    with pytest.raises(KvPlanProblem, match="there is no file"):
        load_kv_plan(tmp_path / "gone.md", TODAY)
    with pytest.raises(KvPlanProblem, match="cannot be read"):
        load_kv_plan(tmp_path, TODAY)
    with pytest.raises(KvPlanProblem, match="looks like GBK"):
        plan(tmp_path, CHINESE.encode("gbk"))
    with pytest.raises(KvPlanProblem, match="not a text file"):
        plan(tmp_path, b"%PDF-1.7\x00\x01\x02" * 20)
    with pytest.raises(KvPlanProblem, match="not valid YAML"):
        plan(tmp_path, "cause: [", "plan.yaml")
    with pytest.raises(KvPlanProblem, match="holds no keys"):
        plan(tmp_path, "- cause", "plan.yaml")
    with pytest.raises(KvPlanProblem, match="at most"):
        plan(tmp_path, YAML + "x" * 200_000)
