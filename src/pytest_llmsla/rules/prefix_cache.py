"""Prefix-cache hits by the server's own counter, where its answers do not tell them.

A server may answer from a cache and say so nowhere but in its metrics: vLLM and SGLang count hits
there, and tell them in an answer only when started so. The counter is a sum over a window, so it
cannot name the request; but what every prompt shares is known, and more than that is a hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..timeline import OWN_PROMPT, Timeline
from .checks import BLOCK_TOKENS

_MOST = 2**53


@dataclass(frozen=True)
class _Window:
    """One window's figures, tokens. ``silent``: requests of ours that told nothing."""

    name: str
    hits: int
    told: int
    silent: int
    others: bool
    """Others were served meanwhile."""

    def over(self, template_tokens: int) -> int:
        """Hits that neither answers nor what all prompts share explain."""
        return self.hits - self.told - self.silent * (template_tokens + BLOCK_TOKENS)


def hidden_hits(servers: Sequence[Mapping[str, Any]], template_tokens: int) -> str | None:
    """Why TTFT is not that of new prompts although no answer said so; None when it may be.

    Where others were served in the same window the hits may be theirs: see
    :func:`unexplained_hits`.
    """
    try:
        windows = list(_windows(servers))
    except ValueError as e:
        return f"the server's count of prefix-cache hits cannot be read: {e}"
    for w in windows:
        if w.silent and not w.others and w.over(template_tokens) > 0:
            return (
                f"prompts were answered from a prefix cache: the server counted {w.hits} tokens "
                f"({w.name}) over {w.silent} requests whose answers do not tell them "
                f"(cached_tokens), and what every prompt shares is at most "
                f"{template_tokens + BLOCK_TOKENS} tokens a request. workload.warm_cache is not "
                "set: this TTFT is not that of a new prompt. Give prompts that the server has not "
                "seen, restart it, or use the built-in prompts"
            )
    return None


def unexplained_hits(servers: Sequence[Mapping[str, Any]], template_tokens: int) -> list[str]:
    """What a reader must know of hits that are not, or not surely, hits of ours."""
    try:
        windows = list(_windows(servers))
    except ValueError:
        return []
    out: dict[str, None] = {}
    for w in windows:
        if w.over(template_tokens) <= 0:
            continue
        if w.others:
            why = "others were served meanwhile, and whose they are is not told"
        elif w.silent:
            why = "answers do not tell it"
        else:
            why = f"answers told {w.told}"
        out[f"prefix cache: the server counted {w.hits} tokens from it ({w.name}); {why}"] = None
    return list(out)


def untold(
    servers: Sequence[Mapping[str, Any]], ok: Sequence[Timeline], *, from_files: bool
) -> list[str]:
    """What a reader must know where nobody can tell whether repeated prompts came from a cache.

    ``ok``: sound measured requests to a server. ``from_files``: all of their prompts are those of
    files; else those count that a test brought itself.
    """
    again = [t for t in ok if from_files or any(note.startswith(OWN_PROMPT) for note in t.notes)]
    silent = sum(t.cached_tokens is None for t in again)
    try:
        counted = servers and len(list(_windows(servers))) == len(servers)
    except ValueError:
        return []  # an error of its own
    if not silent or counted:
        return []
    whose = "of files" if from_files else "written in the test"
    return [
        f"nobody can tell whether prompts were answered from a prefix cache: {silent} of "
        f"{len(again)} answers do not say (cached_tokens), the server has no counter of it in its "
        f"metrics, and prompts {whose} are the same in every run"
    ]


def _windows(servers: Iterable[Mapping[str, Any]]) -> Iterator[_Window]:
    """Windows with a counter of hits.

    Raises:
        ValueError: a figure on record is none.
    """
    for server in servers:
        cache = server.get("prefix_cache")
        if cache is None or (isinstance(cache, Mapping) and cache.get("hits") is None):
            continue
        if not isinstance(cache, Mapping):
            raise ValueError(f"prefix_cache is {cache!r:.40}")
        names = cache.get("names")
        yield _Window(
            " + ".join(map(str, names)) if isinstance(names, (list, tuple)) else "?",
            _count(cache, "hits"),
            _count(cache, "told"),
            _count(cache, "silent"),
            _others(server),
        )


def _others(server: Mapping[str, Any]) -> bool:
    for key in ("requests", "tokens"):
        share = server.get(key)
        if isinstance(share, Mapping) and share.get("others") is not None:
            return bool(share["others"])
    return False


def _count(cache: Mapping[str, Any], key: str) -> int:
    value = cache.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"prefix_cache.{key} is {value!r:.40}")
    return value
