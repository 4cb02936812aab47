"""workload.sampling as the keys of an API, and what target.extra_body may add to a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import UsageError
from ..base import SAMPLING_KEYS

_OFF: Mapping[str, float] = {
    "top_p": 1,
    "min_p": 0,
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
}
"""Values that switch a key off: an API that lacks the key need not be told."""


@dataclass(frozen=True, slots=True)
class SamplingKeys:
    """How one API spells ``workload.sampling``."""

    api: str
    names: Mapping[str, str]
    """Key of sla.yaml → key of the API; a key that is missing here cannot be expressed."""
    greedy: Mapping[str, Any]
    """All that is sent for ``greedy: true``."""
    sampled: Mapping[str, Any] = field(default_factory=dict)
    """Sent besides the keys when not greedy."""
    skip_off: frozenset[str] = frozenset()
    """Keys whose "off" value the API refuses, so that it is left out."""

    def of(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """The keys to send. A key that is null is not sent: the server's default holds.

        Raises:
            UsageError: an unknown key, a temperature of 0, or a key that the API does not have.
        """
        for key in sampling:
            if key not in SAMPLING_KEYS:
                valid = ", ".join(SAMPLING_KEYS)
                raise UsageError(
                    f"workload.sampling.{key} is unknown. Valid: {valid}. Keys that only your "
                    "server knows belong into target.extra_body."
                )
        if sampling.get("greedy"):
            return dict(self.greedy)
        out = dict(self.sampled)
        for key in SAMPLING_KEYS[1:]:
            value = sampling.get(key)
            if value is None:
                continue
            if key == "temperature" and value == 0:
                raise UsageError(
                    "workload.sampling.temperature: 0 is no temperature. Use greedy: true."
                )
            if key in self.names:
                if not (key in self.skip_off and value == _OFF[key]):
                    out[self.names[key]] = value
            elif key != "seed" and _OFF.get(key) != value:
                raise UsageError(
                    f"workload.sampling.{key}: {value} cannot be asked of {self.api}: its API has "
                    f"no such key. Valid: {', '.join(self.names)}. Remove {key}, or ask another "
                    "route of the server."
                )
        return out

    def notes(self, sampling: Mapping[str, Any]) -> tuple[str, ...]:
        """A seed that cannot be sent: it changes no distribution, so it is no error."""
        if "seed" in self.names or sampling.get("greedy") or sampling.get("seed") is None:
            return ()
        return (f"seed not sent: {self.api} has no such key",)


@dataclass(frozen=True, slots=True)
class Reserved:
    """Keys that ``target.extra_body`` may not set, and why: but for what is sent anyway."""

    words: Mapping[str, str]
    anyway: Mapping[str, Any] = field(
        default_factory=lambda: {"stream": True, "n": 1, "best_of": 1, "n_cmpl": 1}
    )

    def check(self, extra: Mapping[str, Any], where: str = "target.extra_body") -> None:
        """Refuse a reserved key, unless it says what is so anyway.

        Raises:
            UsageError: ``extra`` holds one.
        """
        for key, value in extra.items():
            if key in self.words and not (key in self.anyway and self.anyway[key] == value):
                raise UsageError(
                    f"{where}.{key} is not yours to set: {self.words[key]}. Remove it."
                )


LENGTH = "the output length comes from workload.max_new_tokens"
PROMPT = "the prompt comes from workload.prompts"
STREAM = "without a stream there is nothing to time"
ONE = "one request is one answer; set workload.load or tgs.concurrency for more"


def with_extra(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """``body`` with the keys of ``extra`` put last; one that is null takes the key out."""
    for key, value in extra.items():
        if value is None:
            body.pop(key, None)
        else:
            body[key] = value
    return body


def replaced(sent: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on sampling keys that ``extra`` changes: what was sent is not what was declared."""
    return tuple(
        f"extra_body: {key} is {'not sent' if extra[key] is None else extra[key]}, not {value}"
        for key, value in sent.items()
        if key in extra and extra[key] != value
    )
