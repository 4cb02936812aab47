"""What each server calls its own figures. Times are seconds, cache usage is a share of 0–1.

Read from the servers' sources and documents; a server that uses other names has no figures here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """One histogram: its names (newest first), the labels it must carry, and what it counts."""

    names: tuple[str, ...] = ()
    what: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """The metrics of one kind of server; empty where it has none."""

    software: str
    ttft: Histogram = Histogram()
    itl: Histogram = Histogram()
    tpot: Histogram = Histogram()
    queue: Histogram = Histogram()
    prefill: Histogram = Histogram()
    requests: tuple[str, ...] = ()
    """Counters of finished requests."""
    tokens: tuple[str, ...] = ()
    """Counters of generated tokens."""
    cached: tuple[str, ...] = ()
    """Counters of prompt tokens that a prefix cache held; those that are there add up."""
    kv: tuple[str, ...] = ()
    """Gauges of KV-cache usage."""
    capacity: str = ""
    """Gauge of the tokens that the KV cache holds."""

    def histograms(self) -> dict[str, Histogram]:
        """The histograms by the key they have in a report."""
        return {
            "ttft": self.ttft,
            "itl": self.itl,
            "tpot": self.tpot,
            "queue": self.queue,
            "prefill": self.prefill,
        }


_PER_STEP = "gap between two steps of a request; a step that gives several tokens is one sample"
_PER_REQUEST = "mean of a request, over its tokens after the first"

VLLM = Names(
    software="vllm",
    ttft=Histogram(("vllm:time_to_first_token_seconds",)),
    itl=Histogram(
        ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"), _PER_STEP
    ),
    tpot=Histogram(("vllm:request_time_per_output_token_seconds",), _PER_REQUEST),
    queue=Histogram(("vllm:request_queue_time_seconds",)),
    prefill=Histogram(("vllm:request_prefill_time_seconds",)),
    requests=("vllm:request_success_total",),
    tokens=("vllm:generation_tokens_total",),
    cached=("vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total"),
    kv=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
)

SGLANG = Names(
    software="sglang",
    ttft=Histogram(("sglang:time_to_first_token_seconds",)),
    itl=Histogram(
        ("sglang:inter_token_latency_seconds",),
        "gap between two deliveries of a request, divided by its tokens",
    ),
    tpot=Histogram(
        ("sglang:request_time_per_output_token_seconds", "sglang:time_per_output_token_seconds"),
        _PER_REQUEST,
    ),
    queue=Histogram(("sglang:queue_time_seconds",)),
    requests=("sglang:num_requests_total",),
    tokens=("sglang:generation_tokens_total",),
    cached=("sglang:cached_tokens_total",),
    kv=("sglang:token_usage",),
    capacity="sglang:max_total_num_tokens",
)

TGI = Names(
    software="text-generation-inference",
    tpot=Histogram(
        ("tgi_request_mean_time_per_token_duration",),
        "inference time of a request divided by its tokens, prefill included",
    ),
    queue=Histogram(("tgi_request_queue_duration",)),
    prefill=Histogram(
        ("tgi_batch_inference_duration",), "one sample a batch", (("method", "prefill"),)
    ),
    requests=("tgi_request_success", "tgi_request_success_total"),
    tokens=("tgi_request_generated_tokens_sum",),
)

LMDEPLOY = Names(
    software="lmdeploy",
    ttft=Histogram(("lmdeploy:time_to_first_token_seconds",)),
    itl=Histogram(("lmdeploy:iter_token_latency",), _PER_STEP),
    tpot=Histogram(("lmdeploy:time_per_output_token_seconds",), "mean of a step over its tokens"),
    queue=Histogram(("lmdeploy:request_queue_time_seconds",)),
    prefill=Histogram(("lmdeploy:request_prefill_time_seconds",)),
    requests=("lmdeploy:request_success_total",),
    tokens=("lmdeploy:generation_tokens_total",),
    kv=("lmdeploy:gpu_cache_usage_perc",),
)

TENSORRT_LLM = Names(
    software="tensorrt-llm",
    ttft=Histogram(("trtllm_time_to_first_token_seconds",)),
    tpot=Histogram(("trtllm_time_per_output_token_seconds",), _PER_REQUEST),
    queue=Histogram(("trtllm_request_queue_time_seconds",)),
    requests=("trtllm_request_success_total",),
    tokens=("trtllm_generation_tokens_total",),
    kv=("trtllm_kv_cache_utilization",),
)

LLAMACPP = Names(
    software="llama.cpp",
    tokens=("llamacpp:tokens_predicted_total",),
    cached=("llamacpp:prompt_tokens_cached_total",),
    kv=("llamacpp:kv_cache_usage_ratio",),
)
"""No histograms: two sums of time, see :func:`llamacpp_sums`."""

LLAMACPP_PROMPT_SECONDS = "llamacpp:prompt_seconds_total"
LLAMACPP_DECODE_SECONDS = "llamacpp:tokens_predicted_seconds_total"

EVERY = (VLLM, SGLANG, TGI, LMDEPLOY, TENSORRT_LLM, LLAMACPP)

VLLM_CACHE_CONFIG = "vllm:cache_config_info"
"""Its labels ``num_gpu_blocks`` and ``block_size`` give the cache's capacity."""

PROCESS_START = "process_start_time_seconds"

MEMORY = ("nv_gpu_memory_used_bytes", "DCGM_FI_DEV_FB_USED", "process_resident_memory_bytes")
"""Gauges of memory that some servers publish beside their own; the second is in MiB."""


def wanted() -> frozenset[str]:
    """Every sample name that is looked for, with the parts of histograms."""
    plain = {VLLM_CACHE_CONFIG, PROCESS_START, LLAMACPP_PROMPT_SECONDS, LLAMACPP_DECODE_SECONDS}
    plain.update(MEMORY)
    for names in EVERY:
        plain.update(names.requests, names.tokens, names.cached, names.kv)
        plain.update({names.capacity} - {""})
        for h in names.histograms().values():
            plain.update(f"{n}_{part}" for n in h.names for part in ("bucket", "sum", "count"))
    return frozenset(plain)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A figure over time: its column, the names it has, and what one unit of them is in its own."""

    column: str
    names: tuple[str, ...]
    unit: float = 1.0
    total: bool = False
    """A counter: what was added since sampling began."""


OVER_TIME = (
    Gauge(
        "server_running",
        (
            "vllm:num_requests_running",
            "sglang:num_running_reqs",
            "tgi_batch_current_size",
            "lmdeploy:num_requests_running",
            "llamacpp:requests_processing",
        ),
    ),
    Gauge(
        "server_waiting",
        (
            "vllm:num_requests_waiting",
            "sglang:num_queue_reqs",
            "tgi_queue_size",
            "lmdeploy:num_requests_waiting",
            "llamacpp:requests_deferred",
        ),
    ),
    Gauge("server_kv_percent", tuple(name for names in EVERY for name in names.kv), unit=100.0),
    Gauge("server_preemptions", ("vllm:num_preemptions_total",), total=True),
)
"""What is sampled while a gate measures; the names as in the servers' sources."""
