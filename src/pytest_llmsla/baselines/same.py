"""May two runs be compared? Machine, cards, driver, libraries, model, workload: what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..log import RunLog
from ..resume import digests

_PACKAGES = (
    "pytest-llmsla",
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "bitsandbytes",
    "gguf",
    "numpy",
)
"""Libraries that change a time; those of tests and reports do not."""
_CPU = ("model", "physical_cores", "usable_cores", "governor")
_GPU = ("name", "driver", "memory_gib")
_TARGET = (
    "model", "revision", "weights_sha256", "made_from_sha256", "chat_template_sha256", "format",
    "dtype", "quantization", "double_quant", "compute_dtypes", "devices", "attn", "cache",
    "use_cache", "compile", "batching", "cpu_threads",
)  # fmt: skip
_SERVER = ("software", "version", "model", "dtype", "quantization", "max_context")
_POLICY = ("target", "workload", "ttft")
_NOT_MEASURED = {"timeouts", "offline", "api_key_env", "api_key_file", "metrics_url", "proxy"}
"""Keys of ``target`` that do not change what was measured."""


def differences(one: RunLog, two: RunLog) -> list[str]:
    """What makes two runs incomparable, each as ``name: this and that``; empty: nothing.

    A fact that one of them lacks differs; a machine that neither names is unknown, not the same.
    """
    first, second = dict(_facts(one)), dict(_facts(two))
    if not (one.run.get("host") and two.run.get("host")):
        return ["machine: not on record"]
    return [
        f"{name}: {_brief(first.get(name))} and {_brief(second.get(name))}"
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
    ]


def _facts(log: RunLog) -> Iterator[tuple[str, object]]:
    host = log.run.get("host") or {}
    yield from _some("CPU", host.get("cpu"), _CPU)
    yield "machine", host.get("machine")
    yield "python", (host.get("python") or {}).get("version")
    gpus = [g for g in host.get("gpus") or () if isinstance(g, Mapping)]
    for name in _GPU:
        yield f"GPU {name}", [g.get(name) for g in gpus]
    yield from _some("library", host.get("packages"), _PACKAGES)
    for name, value in (host.get("settings") or {}).items():
        yield f"setting {name}", value
    for number, target in enumerate(log.targets):
        stem = "model" if number == 0 else f"model {number + 1}"
        yield f"{stem} kind", target.get("kind")
        yield from _some(stem, target, _TARGET)
        yield from _some("server", target.get("server"), _SERVER)
    yield from _policy("policy", log.run.get("policy"))
    yield from _prompts("policy", log.run)
    for key, line in sorted(log.gates.items()):
        yield from _policy(f"policy of {key}", line.get("policy"))
        yield from _prompts(f"policy of {key}", line)


def _some(stem: str, value: object, names: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name in names:
            yield f"{stem} {name}", value.get(name)


def _policy(stem: str, policy: object) -> Iterator[tuple[str, object]]:
    """What the policy says of the measurement: limits and evidence may change, no other key.

    A trace is known by its content where that is on record, wherever the file lies.
    """
    if not isinstance(policy, Mapping):
        return
    known = dict(_leaves("", policy.get("workload"))).get(".load.trace_sha256")
    for group in _POLICY:
        for name, value in _leaves(f"{stem} {group}", policy.get(group)):
            if known and name == f"{stem} workload.load.trace":
                continue
            if group != "target" or name.rpartition(".")[2] not in _NOT_MEASURED:
                yield name, value
    buckets = policy.get("buckets") or ()
    edges = ("name", "prompt_min", "prompt_max", "measured_to")
    yield f"{stem} buckets", [{k: b.get(k) for k in edges} for b in buckets]
    for key in ("bursts", "estimated"):
        yield f"{stem} itl.{key}", (policy.get("itl") or {}).get(key)
    yield f"{stem} tgs.concurrency", (policy.get("tgs") or {}).get("concurrency")


def _prompts(stem: str, line: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Prompt files by their content. A target's own code is what is compared, and may differ."""
    for key, sha256 in digests(line).items():
        if key.startswith("workload.prompts"):
            yield f"{stem} {key} sha256", sha256


def _leaves(name: str, value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _NOT_MEASURED:
                yield from _leaves(f"{name}.{key}", inner)
    else:
        yield name, value


def _brief(value: object) -> str:
    if value is None:
        return "nothing on record"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
