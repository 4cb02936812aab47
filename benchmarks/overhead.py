"""What does our timing cost? The same prompts with and without it, interleaved in one process.

    python benchmarks/overhead.py --json benchmarks/results/overhead.json

"With" is the target as a gate uses it: tokenise, streamer, stage marks, recorder, decode.
"Without" is tokenise, plain ``model.generate`` with the very same arguments and no streamer,
decode. Both must give the same tokens. Claimed: ≤ 1 % of wall time on SmolLM2-135M, ≤ 15 µs a
token on a two-layer model, where the model itself takes next to nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from harness import arguments, finish, interleave, judged_median, median_interval
from pytest_llmsla.targets.base import Ask, Recorder
from pytest_llmsla.targets.transformers import TransformersTarget
from random_model import save

LIMIT_SHARE = 1.0
LIMIT_US = 15.0
OURS = ("streamer", "logits_processor", "stopping_criteria")
"""Arguments of ``generate`` that exist for our measuring only."""

TEXT = "Explain to a new colleague, number {}, how a queue keeps its order when two people arrive."


def ask(i: int, tokens: int) -> Ask:
    """Greedy and of forced length, so that both arms do the same work."""
    return Ask(
        prompt=TEXT.format(i), max_new_tokens=tokens, sampling={"greedy": True}, force_length=True
    )


def with_timing(target: TransformersTarget, one: Ask) -> tuple[float, list[int]]:
    """Seconds and the number of tokens at each arrival, measured from outside."""
    record = Recorder(target.clock)
    began = time.perf_counter()
    record.start()
    target.generate(one, record)
    return time.perf_counter() - began, [n for _, n in record.arrivals]


def plain_arguments(target: TransformersTarget, one: Ask) -> dict[str, Any]:
    """What the target hands to ``generate``, less what is there for measuring."""
    seen: dict[str, Any] = {}
    model = target.model
    original = model.generate

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.update(kwargs)
        return original(*args, **kwargs)

    model.generate = spy
    try:
        with_timing(target, one)
    finally:
        del model.generate
    return {k: v for k, v in seen.items() if k not in OURS}


def without_timing(
    target: TransformersTarget, one: Ask, arguments: dict[str, Any]
) -> tuple[float, int]:
    """Seconds and new tokens of the same request by plain transformers."""
    tokenizer, model = target.tokenizer, target.model
    began = time.perf_counter()
    messages = [{"role": "user", "content": one.prompt}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    given = {**arguments, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    out = model.generate(**given)
    tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    return time.perf_counter() - began, int(out.shape[1] - ids.shape[1])


def compare(target: TransformersTarget, pairs: int, tokens: int) -> dict[str, Any]:
    """Median of the paired ratios (−1, in %) and of the differences a token (µs)."""
    arguments = plain_arguments(target, ask(0, tokens))

    used: dict[str, list[float]] = {"with": [], "without": []}

    def ours(i: int) -> float:
        cpu = time.process_time()
        seconds, arrivals = with_timing(target, ask(i, tokens))
        used["with"].append(time.process_time() - cpu)
        if sum(arrivals) != tokens:
            raise SystemExit(f"{sum(arrivals)} tokens were stamped, {tokens} were generated")
        return seconds

    def plain(i: int) -> float:
        cpu = time.process_time()
        seconds, new = without_timing(target, ask(i, tokens), arguments)
        used["without"].append(time.process_time() - cpu)
        if new != tokens:
            raise SystemExit(f"plain generate gave {new} tokens, {tokens} were asked for")
        return seconds

    interleave(4, ours, plain)  # warm-up
    for values in used.values():
        values.clear()
    found = interleave(pairs, ours, plain)
    return {
        "pairs": pairs,
        "tokens": tokens,
        "with_ms": median_interval([a * 1e3 for a, _ in found]),
        "without_ms": median_interval([b * 1e3 for _, b in found]),
        "share_percent": median_interval([(a / b - 1) * 100 for a, b in found]),
        "us_per_token": median_interval([(a - b) / tokens * 1e6 for a, b in found]),
        # Processor time: what a busy machine takes away is not in it.
        "cpu_us_per_token": median_interval(
            [(a - b) / tokens * 1e6 for a, b in zip(used["with"], used["without"], strict=True)]
        ),
    }


def two_layer_model(folder: Path) -> TransformersTarget:
    """A random LLaMA of two small layers and 2,048 ids, loaded as any other checkpoint."""
    save(folder, device="cpu", tiny=True, dtype="float32", vocabulary=2048)
    return TransformersTarget.load({"kind": "transformers", "model": str(folder), "device": "cpu"})


def show(part: str, values: dict[str, Any]) -> None:
    """Print one part's figures."""
    for kind, found in values.items():
        if isinstance(found, dict):
            line = "  ".join(f"{k} {v}" if v is None else f"{k} {v:.4g}" for k, v in found.items())
            print(f"{part:11} {kind:14} {line}", flush=True)


def main() -> int:
    """Measure, print, and exit 0 when the claims hold."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=80, help="pairs on SmolLM2")
    parser.add_argument("--tokens", type=int, default=16, help="new tokens on SmolLM2")
    parser.add_argument("--threads", type=int, help="torch threads on SmolLM2 (default: torch's)")
    parser.add_argument("--small-pairs", type=int, default=300)
    parser.add_argument("--small-tokens", type=int, default=64)
    args = parser.parse_args()
    detail: dict[str, Any] = {}
    threads = args.threads or torch.get_num_threads()
    with tempfile.TemporaryDirectory() as name:
        small = two_layer_model(Path(name))
        torch.set_num_threads(1)  # layers this small gain nothing from more, and jitter
        detail["two_layers"] = compare(small, args.small_pairs, args.small_tokens)
    show("two_layers", detail["two_layers"])
    torch.set_num_threads(threads)
    spec = {"kind": "transformers", "model": "smollm2-135m-instruct", "device": "cpu"}
    real = TransformersTarget.load(spec)
    detail["smollm2"] = {"threads": threads, **compare(real, args.pairs, args.tokens)}
    show("smollm2", detail["smollm2"])
    claims = [
        judged_median(
            detail["smollm2"]["share_percent"], LIMIT_SHARE, "%", "share of wall time on SmolLM2:"
        ),
        judged_median(
            detail["two_layers"]["us_per_token"], LIMIT_US, "µs", "cost a token on two layers:"
        ),
    ]
    return finish("overhead", claims, detail, args.json)


if __name__ == "__main__":
    sys.exit(main())
