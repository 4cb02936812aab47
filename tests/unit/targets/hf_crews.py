"""What the tests of in-process crews share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transformers.generation import configuration_utils

from pytest_llmsla.targets.base import Ask, Crew, Job, Recorder
from pytest_llmsla.targets.transformers import TransformersTarget
from pytest_llmsla.timeline import Timeline

CONTINUOUS = hasattr(configuration_utils, "ContinuousBatchingConfig")
GREEDY: Mapping[str, Any] = {"greedy": True}


def ask(prompt: str, new: int, *, force: bool = True, sampling: Mapping[str, Any] = GREEDY) -> Ask:
    """One request, greedy and of full length unless told otherwise."""
    return Ask(prompt, new, sampling, force_length=force)


def job(asked: Ask, name: str) -> Job:
    """It with the timeline that carries it."""
    return Job(asked, Timeline(name, "b", 0, 0, max_new_tokens=asked.max_new_tokens))


def drain(crew: Crew) -> list[Timeline]:
    """All that is in flight, in the order it ended."""
    out: list[Timeline] = []
    while crew.in_flight:
        out += crew.wait()
    return out


def answers(crew: Crew, asks: Sequence[Ask]) -> list[Timeline]:
    """All started together; their timelines in the order they were asked."""
    for one in asks:
        if crew.hung is None:
            crew.prepare(one)
    for n, one in enumerate(asks):
        crew.start(job(one, str(n)))
    return sorted(drain(crew), key=lambda t: int(t.id))


def texts_alone(target: TransformersTarget, asks: Sequence[Ask]) -> list[str]:
    """What the model says to each when asked alone."""
    out = []
    for one in asks:
        record = Recorder()
        record.start()
        out.append(target.generate(one, record).text)
    return out


@contextlib.contextmanager
def on_logits(target: TransformersTarget, change: Callable[[int, Any], None]) -> Iterator[None]:
    """Let ``change(step, logits)`` see the logits of every forward, counted from 0 from now on.

    Their shape is (rows, 1, vocabulary) in a static batch, (1, requests, vocabulary) in a running
    one. What it raises, the forward raises.
    """
    steps = iter(range(10**6))

    def hook(_module: Any, _args: Any, logits: Any) -> None:
        change(next(steps), logits)

    handle = target.model.lm_head.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
