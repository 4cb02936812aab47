from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_samples import SHORT, load, refusal

from pytest_llmsla.errors import UsageError
from pytest_llmsla.policy import PUBLISHED_RULES, policy_from_mapping

TARGET = "{kind: transformers, model: smollm2-135m-instruct, dtype: bfloat16}"
FIRST = "{name: short,  prompt_max: 128, ttft_ms: 300}"
SECOND = "{name: medium, prompt_max: 512, ttft_ms: 450}"
LAST = "{name: long,   measured_to: 1024, ttft_ms: 800}"
MS = "a number of milliseconds greater than 0"

# (what is replaced in the short form, by what, the whole message after the file name)
CASES = [
    # limits
    ("ttft_ms: 300", "ttft_ms: true", f":5: buckets.short.ttft_ms: got true; valid: {MS}"),
    (
        "ttft_ms: 300",
        "ttft_ms: '300'",
        f":5: buckets.short.ttft_ms: got '300'; valid: {MS}. Remove the quotes.",
    ),
    (
        "ttft_ms: 300",
        "ttft_ms: 300ms",
        f":5: buckets.short.ttft_ms: got '300ms'; valid: {MS}. Write the bare number, in the unit "
        "the key names (300 ms given).",
    ),
    ("ttft_ms: 300", "ttft_ms: 0", f":5: buckets.short.ttft_ms: got 0; valid: {MS}"),
    ("ttft_ms: 300", "ttft_ms: -1", f":5: buckets.short.ttft_ms: got -1; valid: {MS}"),
    ("ttft_ms: 300", "ttft_ms: 1e999", f":5: buckets.short.ttft_ms: got inf; valid: {MS}"),
    (
        "ttft_ms: 300",
        "ttft_ms: .nan",
        ":5: buckets.short.ttft_ms: got .nan, not a finite number: give a finite one",
    ),
    (
        ", ttft_ms: 300",
        "",
        ":5: buckets.short.ttft_ms: missing: rule 1 asks for a TTFT limit in every bucket",
    ),
    (
        "p95_ms: 50",
        "p95_ms: null",
        f":8: itl.p95_ms: null would switch rule 2 off; valid: {MS}",
    ),
    # versions, names, enums
    ("version: 1", "version: 2", ":1: version: got 2; valid: 1"),
    ("version: 1", "version: true", ":1: version: got true; valid: 1"),
    ("version: 1\n", "", ":1: version: missing; valid: 1"),
    (
        "service: llama2-7b-chat-4bit",
        "service: 7",
        ":2: service: got 7; valid: text that is not empty. Write it in quotes.",
    ),
    (
        "dtype: bfloat16",
        "dtype: bf16",
        ":3: target.dtype: got 'bf16'; valid: auto, float32, float16 or bfloat16. "
        "Did you mean bfloat16?",
    ),
    (
        "dtype: bfloat16",
        "offline: 'true'",
        ":3: target.offline: got 'true'; valid: auto, true or false. Remove the quotes.",
    ),
    (
        "kind: transformers",
        "kind: transfomers",
        ":3: target.kind: got 'transfomers'; valid: transformers, python, openai, tgi, "
        "llamacpp, mii, scripted. "
        "Did you mean transformers?",
    ),
    # unknown keys
    (
        "service:",
        "servce:",
        ":2: servce: unknown key. Did you mean service? Valid here: version, service, target, "
        "workload, buckets, ttft, itl, tgs, memory, goodput, errors, evidence, baseline, report",
    ),
    (
        "p95_ms: 50",
        "p95_ms: 50, p59_ms: 40",
        ":8: itl.p59_ms: unknown key. Did you mean p95_ms? Valid here: p50_ms, p95_ms, p99_ms, "
        "stall_p95_ms, bursts, estimated, kv_plan, conditional_passes",
    ),
    (
        "ttft_ms: 300",
        "ttft_ms: 300, prompt_min: 1",
        ":5: buckets.short.prompt_min: not a key of the file: a bucket starts where the one before "
        "ends. Remove it",
    ),
    # a TTFT limit without a length
    (
        "itl:",
        "ttft_ms: 300\nitl:",
        ":8: ttft_ms: unknown key; a TTFT limit always names its prompt length: give each bucket "
        "its own ttft_ms (rule 1)",
    ),
    (
        "itl:",
        "ttft: {p95_ms: 500}\nitl:",
        ":8: ttft.p95_ms: unknown key; a TTFT limit always names its prompt length: give each "
        "bucket its own ttft_ms (rule 1)",
    ),
    # percentiles and shares
    (
        "itl:",
        "ttft: {percentile: 0.95}\nitl:",
        ":8: ttft.percentile: got 0.95; valid: a number from 1, under 100, such as 95. "
        "Did you mean 95?",
    ),
    (
        "itl:",
        "ttft: {percentile: 100}\nitl:",
        ":8: ttft.percentile: got 100; valid: a number from 1, under 100, such as 95",
    ),
    (
        "itl:",
        "errors: {max_error_rate: 5}\nitl:",
        ":8: errors.max_error_rate: got 5; valid: a share from 0, under 1. Did you mean 0.05?",
    ),
    # buckets
    (
        "prompt_max: 512",
        "prompt_max: 128",
        ":6: buckets.medium.prompt_max: 128 leaves no length: the bucket would be 129–128 tokens, "
        "unreachable. Give at least 129 and list buckets from short to long",
    ),
    (
        "prompt_max: 512, ",
        "",
        ":6: buckets.medium.prompt_max: only the last bucket may be open: give prompt_max, the "
        "longest prompt in tokens",
    ),
    (
        "measured_to: 1024, ",
        "",
        ":7: buckets.long.measured_to: an open bucket (no prompt_max) needs measured_to, the "
        "longest prompt that is measured, in tokens",
    ),
    (
        "measured_to: 1024",
        "measured_to: 513",
        ":7: buckets.long.measured_to: got 513; it must be greater than the bucket's lower edge, "
        "513",
    ),
    (
        "measured_to: 1024",
        "measured_to: 1024, prompt_max: 1024",
        ":7: buckets.long.measured_to: belongs to an open bucket, and this one ends at prompt_max "
        "1024: remove one",
    ),
    (
        "name: medium",
        "name: Short",
        ":6: buckets.Short.name: 'Short' names two buckets (the first is 'short'; upper and lower "
        "case are one): give each its own",
    ),
    (
        "name: medium",
        "name: tgs",
        ":6: buckets.tgs.name: 'tgs' is taken by the plugin: choose another",
    ),
    (
        "name: medium",
        "name: a::b",
        ":6: buckets[1].name: got 'a::b'; valid: a word that starts with a letter, of letters, "
        "digits, _ and - (not tgs, memory, goodput, policy)",
    ),
    (
        SECOND,
        "medium",
        ":6: buckets[1]: got 'medium'; valid: a mapping such as {name: short, prompt_max: 128, "
        "ttft_ms: 300}",
    ),
    # rule 3
    (
        "concurrency: [1]",
        "concurrency: [1, 4, 1]",
        ":9: tgs.concurrency: lists 1 twice: each level is measured once",
    ),
    (
        "concurrency: [1]",
        "concurrency: [0]",
        ":9: tgs.concurrency[0]: got 0; valid: a list of different whole numbers from 1, such as "
        "[1, 4]",
    ),
    (
        "concurrency: [1]",
        "concurrency: []",
        ":9: tgs.concurrency: an empty list would switch rule 3 off: write [1]",
    ),
    (
        "concurrency: [1]",
        "require: [memory]",
        ":9: tgs.require: prompt_lengths, sampling, concurrency left out: rule 3 always asks for "
        "all four conditions, [prompt_lengths, sampling, concurrency, memory]; remove the key or "
        "list all four",
    ),
    (
        "concurrency: [1]",
        "min_tokens_per_s: {4: 100}",
        ":9: tgs.min_tokens_per_s: names concurrency 4, which tgs.concurrency does not list",
    ),
    # memory
    (
        "itl:",
        "memory: {max_gib: 12}\nitl:",
        ":8: memory.max_gib: unknown key; a memory limit names which number it is about: "
        "allocated_peak_gib, reserved_peak_gib, device_used_peak_gib, rss_peak_gib, "
        "growth_mib_per_request",
    ),
    (
        TARGET,
        "{kind: python, entry: 'a:b', memory_gib: 3}",
        ":3: target.memory_gib: belongs to target kind openai, tgi, llamacpp and mii, not to "
        "python: remove it",
    ),
    # budgets
    (
        "itl:",
        "evidence: {max_requests: 60}\nitl:",
        ":8: evidence.max_requests: 60 cannot reach PASS even when every request is clean: "
        "ttft.percentile needs 69, itl.p95_ms needs 69 (risk of a wrong PASS 0.05). Give at least "
        "69, or auto",
    ),
    (
        "p95_ms: 50}",
        "p99_ms: 90}\nevidence: {max_requests: 300}",
        ":9: evidence.max_requests: 300 cannot reach PASS even when every request is clean: "
        "itl.p99_ms needs 349 (risk of a wrong PASS 0.05). Give at least 349, or auto",
    ),
    (
        "itl:",
        "workload: {max_new_tokens: 2}\nitl:",
        ":8: workload.max_new_tokens: 2 leaves under two inter-token gaps a request, so itl.p95_ms "
        "could never be judged: ask for at least 3",
    ),
    # targets
    (
        TARGET,
        "{kind: transformers}",
        ":3: target.model: missing: the model to gate must be named",
    ),
    (
        TARGET,
        "{kind: python}",
        ":3: target.entry: missing; valid: package.module:factory",
    ),
    *(
        (
            TARGET,
            f"{{kind: {kind}, entry: '{entry}'}}",
            f":3: target.entry: got '{entry}'; valid: 'package.module:factory', a module, a colon "
            "and what to call in it",
        )
        for kind, entry in [
            ("python", "engine.make"),
            ("python", ":make"),
            ("scripted", "engine:"),
            ("scripted", "a:b:c"),
        ]
    ),
    (
        TARGET,
        "{kind: scripted}",
        ":3: target.script: a scripted target needs either script or entry",
    ),
    (
        "dtype: bfloat16",
        "entry: 'a:b'",
        ":3: target.entry: belongs to target kind python and scripted, not to transformers: "
        "remove it",
    ),
    (
        "dtype: bfloat16",
        "quantization: nf4, compile: max-autotune",
        ":3: target.compile: refused with quantization: nf4: the quantised layers fall back to "
        "eager and TTFT grows. Remove one, or force it with compile_quantized: true",
    ),
    (
        "dtype: bfloat16",
        "double_quant: true",
        ":3: target.double_quant: has no effect with quantization: none; it belongs to nf4 and fp4",
    ),
    # not in this version
    (
        "dtype: bfloat16",
        "batching: thread",
        ":3: target.batching: got 'thread'; valid: continuous, threads or batch. Did you mean "
        "threads?",
    ),
    (
        "dtype: bfloat16",
        "cache: quantized",
        ":3: target.cache: quantized is not implemented in this version: use dynamic or static",
    ),
    (
        "itl:",
        "goodput: {min_share: 90}\nitl:",
        ":8: goodput.min_share: got 90; valid: a share over 0, under 1, or null. Did you mean 0.9?",
    ),
    (
        "itl:",
        "baseline: {pth: x}\nitl:",
        ":8: baseline.pth: unknown key. Did you mean path? Valid here: path, tolerance, min_runs",
    ),
    (
        "itl:",
        "memory: {growth_mib_per_request: -1}\nitl:",
        ":8: memory.growth_mib_per_request: got -1; valid: a number of MiB from 0, or null for no "
        "limit",
    ),
    (
        "itl:",
        "workload: {load: {kind: poisson}}\nitl:",
        ":8: workload.load.rate: missing: poisson needs a rate, requests per second",
    ),
    (
        "itl:",
        "workload: {load: {rate: 3}}\nitl:",
        ":8: workload.load.rate: belongs to open loop, and workload.load.kind is closed: set kind "
        "(constant, poisson, gamma or trace), or remove it",
    ),
    (
        "itl:",
        "workload: {load: {kind: gamma, rate: 3}}\nitl:",
        ":8: workload.load.burstiness: missing: gamma needs its shape, a number greater than 0 "
        "(1 is Poisson, less comes in bursts)",
    ),
    (
        "itl:",
        "workload: {load: {kind: constant, rate: 3, burstiness: 1}}\nitl:",
        ":8: workload.load.burstiness: belongs to kind gamma, not to constant: remove it",
    ),
    (
        "itl:",
        "workload: {load: {kind: constant, rate: 3, trace_unit: ms}}\nitl:",
        ":8: workload.load.trace_unit: belongs to kind trace, not to constant: remove it",
    ),
    (
        "itl:",
        "workload: {load: {kind: trace}}\nitl:",
        ":8: workload.load.trace: missing: name the file that holds the timestamps",
    ),
    (
        "itl:",
        "workload: {load: {kind: trace, trace: no.csv}}\nitl:",
        ":8: workload.load.trace: there is no file 'no.csv' in the folder FOLDER",
    ),
    (
        "itl:",
        "workload: {load: {kind: poison, rate: 3}}\nitl:",
        ":8: workload.load.kind: got 'poison'; valid: closed, constant, poisson, gamma or trace. "
        "Did you mean poisson?",
    ),
    (
        "itl:",
        "workload: {load: {mix: {short: 1, mid: 2, medium: 1, long: 1}}}\nitl:",
        ":8: workload.load.mix.mid: there is no bucket 'mid'; buckets: short, medium, long",
    ),
    (
        "itl:",
        "workload: {load: {mix: {short: 1, long: 1}}}\nitl:",
        ":8: workload.load.mix: the bucket 'medium' has no weight: add medium: NUMBER",
    ),
    (
        "itl:",
        "workload: {load: {workers: 2}}\nitl:",
        ":8: workload.load.workers: got 2; valid: local, ray or ray://host:port",
    ),
    (
        "concurrency: [1]",
        "concurrency: [4]}\nworkload: {load: {kind: constant, rate: 3}",
        ":9: tgs.concurrency: got [4], and workload.load.kind is constant: how many are in flight "
        "follows from the arrivals. Remove one of the two",
    ),
    (
        "concurrency: [1]",
        "min_tokens_per_s: {1: 3}}\nworkload: {load: {kind: constant, rate: 3}",
        ":9: tgs.min_tokens_per_s: a mapping by concurrency, and workload.load.kind is constant: "
        "give one number",
    ),
    (
        "concurrency: [1]",
        "concurrency: [1, 4]}\nevidence: {max_requests: 100",
        ":10: evidence.max_requests: 100 cannot reach PASS at concurrency 4 even when every "
        "request is clean: ttft.percentile needs 276, itl.p95_ms needs 276 (risk of a wrong PASS "
        "0.05). Give at least 276, or auto",
    ),
    # prompts
    (
        "itl:",
        "workload: {prompts: bultin}\nitl:",
        ":8: workload.prompts: there is no file 'bultin' in the folder FOLDER. Did you mean "
        "builtin?",
    ),
    (
        "itl:",
        "workload: {prompts: synthetic}\nitl:",
        ":8: workload.prompts: synthetic is not implemented in this version: use builtin, or give "
        "a file",
    ),
    # the environment
    (
        "service: llama2-7b-chat-4bit",
        'service: "${NAME}"',
        ":2: service: ${NAME} may stand only in target.model, target.entry, target.base_url and "
        "target.metrics_url, and in target.headers and target.proxy, where it is never shown: "
        "write it out",
    ),
    (
        "smollm2-135m-instruct",
        '"${LLMSLA_NO_SUCH_NAME}"',
        ":3: target.model: the environment variable LLMSLA_NO_SUCH_NAME is not set (or empty): "
        "set it",
    ),
    (
        "smollm2-135m-instruct",
        '"${A:-b}"',
        ":3: target.model: valid: ${NAME} of letters, digits and _, without a default value",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), CASES, ids=[n[:30] for _, n, _ in CASES])
def test_each_mistake_has_its_message(tmp_path: Path, old: str, new: str, message: str) -> None:
    """File, line, key path, what was given, what is valid, what to do: and nothing else."""
    assert old in SHORT
    text = refusal(tmp_path, SHORT.replace(old, new, 1)).replace(str(tmp_path), "FOLDER")
    assert text == f"sla.yaml{message}"


def test_all_problems_are_reported_at_once_in_file_order(tmp_path: Path) -> None:
    """One reading is enough to mend a file."""
    text = SHORT.replace("version: 1", "version: 3").replace("ttft_ms: 450", "ttft_ms: -4")
    text = text.replace("measured_to: 1024, ", "").replace("p95_ms: 50", "p95_ms: 50, p59_ms: 3")
    lines = refusal(tmp_path, f"{text}evidence: {{preset: fast, max_requests: 20}}\n").splitlines()
    assert lines[0].endswith("sla.yaml: 5 problems")
    assert [line.split(": ")[0].strip() for line in lines[1:]] == [
        f"sla.yaml:{n}" for n in (1, 6, 7, 8, 10)
    ]


def test_no_message_shows_what_may_be_a_secret(tmp_path: Path) -> None:
    """Values of unknown keys and of keys of HTTP targets are never repeated."""
    for key in (
        "api_key: sk-hunter2",
        "api_key_env: hunter2",
        "headers: {Authorization: hunter2}",
        "headrs: {Authorization: hunter2}",
        "proxy: 'http://u:hunter2@h'",
    ):
        assert "hunter2" not in refusal(tmp_path, SHORT.replace("dtype: bfloat16", key))
    assert "hunter2" not in refusal(tmp_path, "token: 'hunter2\n\tx: {")


def test_a_secret_in_the_environment_is_not_shown_in_another_keys_message(tmp_path: Path) -> None:
    """Expansion happens only where the value may be printed."""
    text = SHORT.replace("service: llama2-7b-chat-4bit", 'service: "${KEY}"')
    assert "hunter2" not in refusal(tmp_path, text, environ={"KEY": "hunter2"})


def test_prompt_files_of_buckets_must_match_the_buckets(tmp_path: Path) -> None:
    """No bucket without prompts, no prompts for a bucket that is not there."""
    (tmp_path / "a.txt").write_text("x\n", encoding="utf-8")
    files = "{short: a.txt, mediun: a.txt, long: b.txt}"
    text = refusal(tmp_path, f"{SHORT}workload: {{prompts: {files}}}\n")
    assert "workload.prompts.mediun: there is no bucket 'mediun'; buckets: short, medium" in text
    assert "workload.prompts: the bucket 'medium' has no prompts: add medium: FILE" in text
    assert "workload.prompts.long: there is no file 'b.txt'" in text


def test_keys_of_other_kinds_may_stand_at_their_default(tmp_path: Path) -> None:
    """A file that lists every key with its default is a valid file."""
    extra = "batching: continuous, entry: null, base_url: null, headers: {}, retries: 0, api: chat"
    text = SHORT.replace("dtype: bfloat16", f"{extra}, memory_gib: null, verify_tls: true")
    text += "goodput: {min_share: null}\nbaseline: {path: null, tolerance: 0.1, min_runs: 3}\n"
    text += "workload: {load: {kind: closed, workers: local, rate: null}}\n"
    bare = SHORT.replace(", dtype: bfloat16", "")
    assert load(tmp_path, text).sha256 == load(tmp_path, bare).sha256


def test_a_default_of_another_type_is_no_default(tmp_path: Path) -> None:
    """1 is not true: a key that would be ignored must hold exactly its default."""
    text = SHORT.replace("dtype: bfloat16", "verify_tls: 1")
    assert "target.verify_tls: belongs to target kind openai" in refusal(tmp_path, text)


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=6), x, max_size=3),
    max_leaves=8,
)
KEYS = ["version", "service", "target", "workload", "buckets", "ttft", "itl", "tgs", "memory"]
KEYS += ["errors", "evidence", "report", "goodput", "baseline"]
INNER = ["kind", "model", "entry", "script", "prompts", "max_new_tokens", "name", "prompt_max"]
INNER += ["measured_to", "ttft_ms", "p95_ms", "concurrency", "min_tokens_per_s", "require"]
INNER += ["max_requests", "preset", "formats", "load", "sampling", "percentile", "timeouts"]
GROUPS = st.dictionaries(st.sampled_from(INNER), JSONISH, max_size=4)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(KEYS), JSONISH | GROUPS | st.lists(GROUPS, max_size=3), max_size=4
    )
)
def test_nonsense_is_a_usage_error_and_never_a_crash(changes: dict[str, Any]) -> None:
    """Whatever stands in a policy, it loads or is refused in words; a limit stays a limit."""
    try:
        policy = policy_from_mapping({**PUBLISHED_RULES, **changes}, "t").policy
    except UsageError:
        return
    for bucket in policy.buckets:
        assert bucket.ttft_ms is None or 0 < bucket.ttft_ms < math.inf
        assert bucket.prompt_min <= bucket.longest
