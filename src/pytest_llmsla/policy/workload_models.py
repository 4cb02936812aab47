"""What is asked: ``workload``. How it comes in, ``workload.load``: :mod:`load_models`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool

from .keys import COUNT, FLAG, MAPPING, TEXT_OR_NULL, Count, Index, Keys, Positive, Seed, Text, key
from .load_models import Load


class Sampling(Keys):
    """How tokens are chosen: one of rule 3's four conditions."""

    greedy: StrictBool = key(False, FLAG, "Take the likeliest token; the rest is ignored.")
    temperature: Positive = key(
        0.8, "a number greater than 0 (for 0 write greedy: true)", "Temperature."
    )
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] = key(
        0.9, "a number over 0, at most 1", "Nucleus sampling."
    )
    top_k: Count | None = key(None, f"{COUNT}, or null", "Candidates kept.")
    min_p: Annotated[float, Field(strict=True, ge=0, lt=1)] | None = key(
        None, "a number from 0, under 1, or null", "Least share of the best probability."
    )
    repetition_penalty: Positive | None = key(
        None, "a number greater than 0, or null", "Penalty on repeated tokens."
    )
    frequency_penalty: Annotated[float, Field(strict=True, ge=-2, le=2)] | None = key(
        None, "a number from -2 to 2, or null", "Penalty by frequency."
    )
    presence_penalty: Annotated[float, Field(strict=True, ge=-2, le=2)] | None = key(
        None, "a number from -2 to 2, or null", "Penalty by presence."
    )
    seed: Seed = key(0, "a whole number from 0", "Seed of the sampling.")


class Warmup(Keys):
    """Requests that are discarded before measuring, per bucket."""

    max_requests: Index = key(
        31, "a whole number from 0", "At most so many; 0 switches warm-up off; 11 is the earliest."
    )


class Workload(Keys):
    """What is asked."""

    prompts: Text | dict[Text, Text] = key(
        "builtin",
        "builtin, the path of a file, or a mapping {bucket: file}",
        "Where prompts come from; paths are relative to this file.",
    )
    system_prompt: Text | None = key(None, TEXT_OR_NULL, "System prompt of every request.")
    max_new_tokens: Count = key(64, COUNT, "Tokens asked for.")
    force_length: StrictBool = key(True, FLAG, "Ask for exactly max_new_tokens.")
    sampling: Sampling = key(Sampling(), MAPPING, "Sampling parameters.")
    seed: Seed = key(0, "a whole number from 0", "Order and recombination of prompts.")
    warm_cache: StrictBool = key(False, FLAG, "Prefix-cache hits are intended.")
    warmup: Warmup = key(Warmup(), MAPPING, "Warm-up.")
    load: Load = key(Load(), MAPPING, "How requests come in.")
