from __future__ import annotations

import json
from pathlib import Path

import pytest
from policy_samples import SHORT, load, refusal
from pydantic import ValidationError

from pytest_llmsla.errors import UsageError
from pytest_llmsla.policy import (
    PUBLISHED_RULES,
    Policy,
    ScriptedTarget,
    TransformersTarget,
    bucket_for,
    load_policy,
    policy_from_mapping,
)
from pytest_llmsla.policy.models import automatic_budget


def test_the_short_form_holds_the_three_published_rules(tmp_path: Path) -> None:
    """The file people start from says what the rules say, with every edge resolved."""
    p = load(tmp_path, SHORT).policy
    assert [(b.name, b.prompt_min, b.prompt_max, b.longest, b.ttft_ms) for b in p.buckets] == [
        ("short", 1, 128, 128, 300),
        ("medium", 129, 512, 512, 450),
        ("long", 513, None, 1024, 800),
    ]
    assert [b.range_text for b in p.buckets] == [
        "1–128 tokens",
        "129–512 tokens",
        "513+ tokens (measured to 1024)",
    ]
    assert p.itl.p95_ms == 50
    assert p.tgs.require == ("prompt_lengths", "sampling", "concurrency", "memory")
    assert isinstance(p.target, TransformersTarget)
    assert p.target.dtype == "bfloat16"


def test_every_written_key_knows_its_line(tmp_path: Path) -> None:
    """A finding can point at the very line its limit stands on, by bucket name."""
    loaded = load(tmp_path, SHORT)
    assert loaded.source("buckets.short.ttft_ms") == "sla.yaml:5 buckets.short.ttft_ms"
    assert loaded.source("itl.p95_ms") == "sla.yaml:8 itl.p95_ms"
    assert loaded.source("errors.max_error_rate") == "sla.yaml errors.max_error_rate (default)"
    assert loaded.lines["tgs"] == 9


def test_a_policy_survives_json(tmp_path: Path) -> None:
    """What a run writes down is read back as the same policy, rates by concurrency included."""
    text = SHORT.replace("[1]}", "[1], min_tokens_per_s: {1: 20}}")
    loaded = load(tmp_path, text)
    stored = json.loads(json.dumps(loaded.policy.model_dump(mode="json")))
    again = Policy.model_validate(stored)
    assert again == loaded.policy
    assert again.tgs.min_tokens_per_s == {1: 20.0}
    assert policy_from_mapping(stored, "a run").sha256 == loaded.sha256


def test_a_stored_policy_that_breaks_a_rule_is_refused(tmp_path: Path) -> None:
    """Editing a stored policy cannot get round the rules across keys."""
    stored = load(tmp_path, SHORT).policy.model_dump(mode="json")
    stored["tgs"]["require"] = ["memory"]
    with pytest.raises(ValidationError, match="all four conditions"):
        Policy.model_validate(stored)


def test_the_hash_is_of_the_meaning(tmp_path: Path) -> None:
    """Comments, order and spelling of numbers do not change it; a limit does."""
    one = load(tmp_path, SHORT)
    same = load(tmp_path, "# a comment\n" + SHORT.replace("ttft_ms: 300", "ttft_ms: 300.0"))
    other = load(tmp_path, SHORT.replace("ttft_ms: 300", "ttft_ms: 301"))
    assert one.sha256 == same.sha256 != other.sha256
    assert one.file_sha256 != same.file_sha256


def test_policies_cannot_be_changed_after_loading(tmp_path: Path) -> None:
    """A limit that was checked is the limit that is judged."""
    policy = load(tmp_path, SHORT).policy
    with pytest.raises(ValidationError):
        policy.itl.p95_ms = 500  # type: ignore[misc]


@pytest.mark.parametrize(
    ("preset", "alpha"), [("fast", 0.2), ("normal", 0.05), ("strict", 0.01), ("observed", None)]
)
def test_presets_set_the_risk_of_a_wrong_pass(
    tmp_path: Path, preset: str, alpha: float | None
) -> None:
    """Each preset has its α, in the file and by --sla-preset alike."""
    in_file = load(tmp_path, f"{SHORT}evidence: {{preset: {preset}}}\n")
    by_option = load(tmp_path, SHORT).with_preset(preset)
    assert in_file.policy.alpha_pass == by_option.policy.alpha_pass == alpha
    assert in_file.policy.alpha_fail == 0.01
    assert in_file.sha256 == by_option.sha256


def test_a_preset_given_later_is_held_against_the_budget(tmp_path: Path) -> None:
    """A budget that suits the file's preset is refused when an option asks for more."""
    loaded = load(tmp_path, f"{SHORT}evidence: {{preset: fast, max_requests: 40}}\n")
    with pytest.raises(UsageError, match="at least 103"):
        loaded.with_preset("strict")
    with pytest.raises(UsageError, match="Did you mean strict"):
        loaded.with_preset("strikt")


@pytest.mark.parametrize(
    ("q", "budget"), [(0.5, 30), (0.9, 150), (0.95, 300), (0.99, 1500), (0.999, 15000)]
)
def test_the_automatic_budget_has_no_rounding_dust(q: float, budget: int) -> None:
    """⌈15/(1−q)⌉ exactly; a set budget replaces it."""
    assert automatic_budget(q) == budget
    policy = policy_from_mapping({**PUBLISHED_RULES, "evidence": {"max_requests": 77}}, "t").policy
    assert policy.max_requests(q) == 77


def test_levels_are_what_is_measured_apart() -> None:
    """Numbers in flight as listed, one at a time by default, none under a schedule."""
    at = {
        "default": {},
        "listed": {"tgs": {"concurrency": [4, 1], "min_tokens_per_s": {4: 150}}},
        "open": {
            "tgs": {"min_tokens_per_s": 9},
            "workload": {"load": {"kind": "gamma", "rate": 2.5, "burstiness": 0.5}},
        },
    }
    made = {k: policy_from_mapping({**PUBLISHED_RULES, **v}, "t").policy for k, v in at.items()}
    assert {k: p.levels for k, p in made.items()} == {
        "default": (1,),
        "listed": (4, 1),
        "open": (None,),
    }
    assert [made["listed"].min_rate(n) for n in (4, 1)] == [150, None]
    assert made["open"].min_rate(None) == 9
    assert made["open"].load.words == "open loop, 2.5 requests/s"
    assert made["listed"].load.words == "closed loop"
    assert made["listed"].max_requests(0.95, 4) == 1200


def test_a_level_needs_a_budget_for_its_blocks() -> None:
    """69 blocks of eight are 552 requests; fewer could never pass and are refused with that."""
    raw = {**PUBLISHED_RULES, "tgs": {"concurrency": [1, 8]}}
    assert policy_from_mapping({**raw, "evidence": {"max_requests": 552}}, "t")
    with pytest.raises(UsageError, match=r"at concurrency 8.*Give at least 552"):
        policy_from_mapping({**raw, "evidence": {"max_requests": 551}}, "t")


def test_allowed_variables_are_resolved_and_hashed(tmp_path: Path) -> None:
    """Two models under one text are two policies."""
    text = SHORT.replace("model: smollm2-135m-instruct", 'model: "${ROOT}/${MODEL}"')
    a = load(tmp_path, text, environ={"ROOT": "/models", "MODEL": "a"})
    b = load(tmp_path, text, environ={"ROOT": "/models", "MODEL": "b"})
    assert isinstance(a.policy.target, TransformersTarget)
    assert a.policy.target.model == "/models/a"
    assert a.sha256 != b.sha256
    assert a.file_sha256 == b.file_sha256


def test_a_value_from_the_environment_is_not_expanded_again(tmp_path: Path) -> None:
    """What a variable holds is text, whatever it looks like."""
    text = SHORT.replace("model: smollm2-135m-instruct", 'model: "${A}"')
    target = load(tmp_path, text, environ={"A": "${B}", "B": "no"}).policy.target
    assert isinstance(target, TransformersTarget)
    assert target.model == "${B}"


def test_judging_elsewhere_needs_no_target_and_no_environment(tmp_path: Path) -> None:
    """``llmsla check`` on another machine asks for nothing that only a run needs."""
    text = SHORT.replace("model: smollm2-135m-instruct", 'model: "${GONE}"')
    text += "workload: {prompts: gone.txt}\n"
    assert load(tmp_path, text, to_run=False, environ={}).policy.workload.prompts == "gone.txt"
    no_target = "\n".join(line for line in SHORT.splitlines() if "target" not in line)
    assert load(tmp_path, no_target, to_run=False).policy.buckets
    assert "target: missing: say what is gated" in refusal(tmp_path, no_target)


def test_relative_paths_start_at_the_policy(tmp_path: Path) -> None:
    """A policy works from whatever folder pytest was started in."""
    loaded = load(tmp_path, SHORT.replace("p95_ms: 50", "p95_ms: 50, kv_plan: plans/kv.md"))
    assert loaded.kv_plan_path == tmp_path / "plans" / "kv.md"
    assert load(tmp_path, SHORT).kv_plan_path is None


def test_python_tests_may_leave_limits_out_and_set_the_lower_edge() -> None:
    """A mark holds exactly the limits it names."""
    loaded = policy_from_mapping(
        {
            "version": 1,
            "buckets": ({"name": "b", "prompt_min": 10, "prompt_max": 20},),
            "itl": {"p95_ms": None, "kv_plan": Path("plan.md")},
            "tgs": {"concurrency": []},
        },
        "test_x.py:3 test_a",
    )
    assert loaded.policy.buckets[0].prompt_min == 10
    assert loaded.policy.buckets[0].ttft_ms is None
    assert loaded.policy.itl.p95_ms is None
    assert loaded.policy.itl.kv_plan == "plan.md"
    assert loaded.source("itl.p95_ms") == "test_x.py:3 test_a itl.p95_ms"
    with pytest.raises(UsageError, match=r"test_x.py:3 test_a: itl.p59_ms: unknown key"):
        policy_from_mapping({**PUBLISHED_RULES, "itl": {"p59_ms": 3}}, "test_x.py:3 test_a")


def test_loading_does_not_change_the_mapping_it_is_given() -> None:
    """Defaults shared by many tests stay as they are."""
    before = json.dumps(dict(PUBLISHED_RULES))
    policy_from_mapping(PUBLISHED_RULES, "t")
    assert json.dumps(dict(PUBLISHED_RULES)) == before


@pytest.mark.parametrize(("edge", "low"), [(128, 1), (512, 129)])
def test_prompt_max_alone_means_the_published_bucket(edge: int, low: int) -> None:
    """128 is 1–128 and 512 is 129–512, with and without a policy that has such an edge."""
    own = policy_from_mapping(
        {"version": 1, "buckets": [{"name": "all", "prompt_max": 4096}]}, "t"
    ).policy
    for policy in (None, own):
        b = bucket_for(policy, prompt_max=edge)
        assert (b.prompt_min, b.prompt_max) == (low, edge)


def test_prompt_max_prefers_the_policys_own_bucket() -> None:
    """The team's file decides before the published rules."""
    raw = {"version": 1, "buckets": [{"name": "x", "prompt_min": 100, "prompt_max": 128}]}
    own = policy_from_mapping(raw, "t").policy
    assert bucket_for(own, prompt_max=128).prompt_min == 100
    assert bucket_for(own, name="x").prompt_min == 100
    assert bucket_for(own, prompt_min=7, prompt_max=128).range_text == "7–128 tokens"


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"prompt_max": 200}, r"prompt_max=200 \(edges: 128, 512\): give prompt_min"),
        ({"name": "shrt"}, "Did you mean 'short'"),
        ({"name": "short", "prompt_max": 128}, "not both"),
        ({}, "no prompt length"),
        ({"prompt_min": 9, "prompt_max": 3}, "unreachable"),
    ],
)
def test_a_length_that_means_no_bucket_is_refused(kwargs: dict[str, int], words: str) -> None:
    """A limit never falls on a range that was guessed."""
    with pytest.raises(UsageError, match=words):
        bucket_for(None, **kwargs)  # type: ignore[arg-type]


def test_scripts_may_hold_one_number_or_a_list(tmp_path: Path) -> None:
    """A scripted target is written in the policy itself."""
    script = "{ttft_ms: [100, 400], itl_ms: 0, tokens: 8, fail: [0, 3], error: lost}"
    text = SHORT.replace(
        "{kind: transformers, model: smollm2-135m-instruct, dtype: bfloat16}",
        f"{{kind: scripted, script: {script}}}",
    )
    target = load(tmp_path, text).policy.target
    assert isinstance(target, ScriptedTarget)
    assert target.script is not None
    assert target.script.ttft_ms == (100, 400)
    assert target.script.fail == (0, 3)
    assert target.timeouts.first_token_s == 60


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    """Missing files and folders are usage errors with the next step."""
    with pytest.raises(UsageError, match="llmsla init"):
        load_policy(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="a folder"):
        load_policy(tmp_path)
