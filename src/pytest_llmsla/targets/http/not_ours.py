"""Text that the model under test did not generate for this request: an echo, a stored answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from ...wire.errors import WireError
from ...wire.said import short
from .counting import TokenEvent

_LEAST = 20
"""Characters of a prompt by which an echo is known; of a shorter one it is not."""
_RUN = 3
"""Words in a row that count as repeated: single words of a question are in every answer."""
_AT_ONCE_NS = 250_000
"""From one event to the next: no model generates 4000 tokens a second for one request."""
_FASTER = 4
"""Times the pace of the answer: what comes so fast before it was not generated."""
_MARKER = re.compile(
    r"(?:<\|[^<>|]{1,40}\|>|</?[a-z_]{1,20}>|\[/?INST\])(?:(?:system|user|assistant|model)\b)?"
)
"""A mark of a chat template, with the role behind it: decoders leave them out."""
_WORD = re.compile(r"[^\W\u2e80-\U0003ffff]+|[\u2e80-\U0003ffff]")
"""A word, or one character where words are not spaced."""

_OF_OTHERS = re.compile(r"prompt|prefix|kv|radix|context|lora|auth|dns")
_NO_STATE = re.compile(
    r"(?:control|keys?|tags?|groups?|enabled|able|allowed|ttl|policy|config|id)$"
)
_HIT = re.compile(
    r"(?<![a-z])(?<!no[ _-])(?<!not[ _-])(?:refresh)?hit(?![a-z])(?! *[=:] *(?:\?0|0|false|no))",
    re.I,
)
_TRUE = frozenset(("true", "yes", "1"))
_OLD = re.compile(r"(?:stale|revalidated|updating)\b", re.I)
"""nginx's and others' words for an answer that was sent out of the cache all the same."""
_STORED_KEY = "x-litellm-cache-key"
"""LiteLLM names the key under which it found the answer."""
_LOOKUP = "x-cache-lookup"
_OTHER_NAMES = {
    "server-timing": re.compile(""),
    "x-varnish": re.compile(r"\d+ +\d+$"),  # the request that fetched it stands second
    "warning": re.compile(r"11[0-3]\b"),  # stale, by RFC 7234
}
_QUOTED = re.compile(r'"[^"]*"')


def refuse_echo(events: Sequence[TokenEvent], prompt: str) -> None:
    """The prompt repeated before the answer is no token: its time says nothing of the model.

    Known by the text that came first, in one event or in several far faster than the answer: it
    holds the prompt, all words but one or a tenth, whatever template, spaces or marks are around
    them. A model that restates the question does it in other words, or takes its time for every
    token. No count of the server's acquits: some count what they echo.

    Raises:
        WireError: it does.
    """
    if len(prompt) < _LEAST:
        return
    gaps = [b.t_ns - a.t_ns for a, b in pairwise(events)]
    # Not all of it: then its time is that of the whole answer. Cheap first: most are short.
    for n in _leaps(gaps):
        first = "".join(e.text for e in events[:n])
        if 2 * len(first) > len(prompt) and _repeats(first, prompt):
            raise WireError(
                "the server repeats the prompt before its answer: that is no token, and its time "
                "no TTFT. Switch it off where the server is started (echo, return_full_text, "
                "skip_prompt)"
            )


def _leaps(gaps: Sequence[int]) -> Iterator[int]:
    """Numbers of events that came faster than any model goes, or than this one goes later."""
    longest = 0
    for n, gap in enumerate(gaps, 1):
        if gap > max(_AT_ONCE_NS, _FASTER * longest):
            later = gaps[n:]
            slow = _FASTER * longest
            if longest <= _AT_ONCE_NS or (later and median(later) > slow):
                yield n
        longest = max(longest, gap)


def _repeats(text: str, prompt: str) -> bool:
    wanted = list(_words(prompt))
    if len(wanted) < _RUN:
        return prompt.strip() in text
    runs = set(_runs(list(_words(text))))
    found: set[int] = set()
    for at, run in enumerate(_runs(wanted)):
        if run in runs:
            found.update(range(at, at + _RUN))
    return len(wanted) - len(found) <= max(1, len(wanted) // 10)


def _words(text: str) -> Iterator[str]:
    return (m[0] for m in _WORD.finditer(_MARKER.sub(" ", text).casefold()))


def _runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[i:] for i in range(_RUN)), strict=False)


def refuse_stored(headers: Mapping[str, str]) -> None:
    """An answer out of a cache of answers is none of the model's.

    Raises:
        WireError: the response's headers say that it is one (RFC 9111, 5.1: ``Age``; RFC 9211:
            ``Cache-Status``; caches on the way: ``X-Cache: HIT`` and its like). A cache of prompts
            is something else.
    """
    age = headers.get("age", "").strip()
    stored = f"age: {age}" if age.isdecimal() and age.strip("0") else None
    for name, value in headers.items():
        if _tells(name, headers) and _is_hit(name, value.strip()):
            stored = f"{name}: {short(value)}"
    if stored is not None:
        raise WireError(
            f"the answer came out of a cache of answers ({stored}), not from the model: switch "
            "that cache off, or ask the server itself"
        )


def _tells(name: str, headers: Mapping[str, str]) -> bool:
    """True for a header that says where this answer came from."""
    if name == _STORED_KEY:
        return True
    if name == _LOOKUP and "x-cache" in headers:
        return False  # squid: what was looked up; X-Cache says what was sent
    if name in _OTHER_NAMES:
        return True
    return "cache" in name and not _OF_OTHERS.search(name) and not _NO_STATE.search(name)


def _is_hit(name: str, value: str) -> bool:
    if name == _STORED_KEY:
        return bool(value)
    if name.endswith("cache-hits"):
        return any(count.strip().strip("0") for count in value.split(","))
    if name == "server-timing":
        parts = [p for p in value.split(",") if "cache" in p and not _OF_OTHERS.search(p)]
        return any(map(_HIT.search, parts))
    if name in _OTHER_NAMES:
        return bool(_OTHER_NAMES[name].match(value))
    if name == "cache-status":
        return any(map(_is_hit_by_rfc, _QUOTED.sub("q", value).lower().split(",")))
    return bool(_HIT.search(value) or _OLD.match(value)) or value.lower() in _TRUE


def _is_hit_by_rfc(member: str) -> bool:
    """RFC 9211: the name of a cache; what it did. ``hit`` is a Boolean; ``fwd`` means none."""
    cache, *told = (part.strip() for part in member.split(";"))
    if not told:
        return bool(_HIT.search(cache) or _OLD.match(cache))  # not by the RFC: a word alone
    if any(part.split("=")[0].strip() == "fwd" for part in told):
        return False
    return cache == "hit" or any(part in ("hit", "hit=?1", "hit=1", "hit=true") for part in told)
