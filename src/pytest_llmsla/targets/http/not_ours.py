"""Text that the model under test did not generate for this request: an echo, a stored answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

from ...wire.errors import WireError
from ...wire.said import short
from .counting import TokenEvent

_LEAST = 20
"""Characters of a prompt by which an echo is known; of a shorter one it is not."""
_RUN = 3
"""Words in a row that count as repeated: single words of a question are in every answer."""
_FEW = 8
"""Words of a prompt below which an answer may well hold all of it (`Sure, let me explain ...`)."""
_MANY = 60
"""Words of a prompt from which on half of it is an echo that was cut."""
_LONG_RUN = 8
"""Words in a row that count for half a prompt: no answer in its own words has many of these."""
_ROLES = frozenset(("user", "human", "instruction"))
"""What stays of a template's marks where a decoder leaves the marks themselves out."""
_AT_ONCE_NS = 250_000
"""From one event to the next: no model generates 4000 tokens a second for one request."""
_FASTER = 4
"""Times the pace of the answer: what comes so fast before it was not generated."""
_QUICKER = 1.5
"""Times the answer's words a second: what a model restates comes no faster than its answer."""
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
    r"(?<![a-z])(?<!no[ _-])(?<!not[ _-])(?:refresh)?hit(?![a-z])"
    r"(?! *[=:] *(?:\?0|0+(?:\.0*)?|false|no|none)(?![\w.-]))",
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

    Known by the text that came first, in one event or in several that came faster than the
    answer does: whatever template, spaces or marks are around them, it holds all words of the
    prompt but a tenth; of a long prompt half, in long runs; of a short one all, at its beginning.
    A model that restates the question does it in other words, or takes its time for every token.
    No count of the server's acquits: some count what they echo.

    Raises:
        WireError: it does.
    """
    if len(prompt) < _LEAST:
        return
    # Not all of it: then its time is that of the whole answer. Cheap first: most are short.
    for n in _leaps(events):
        first = "".join(e.text for e in events[:n])
        if 3 * len(first) > len(prompt) and _repeats(first, prompt):
            raise WireError(
                "the server repeats the prompt before its answer: that is no token, and its time "
                "no TTFT. Switch it off where the server is started (echo, return_full_text, "
                "skip_prompt)"
            )


def _leaps(events: Sequence[TokenEvent]) -> Iterator[int]:
    """Numbers of events that came faster than any model goes, or than this one goes later.

    Few: from one to the next the longest gap grows more than fourfold.
    """
    gaps = [b.t_ns - a.t_ns for a, b in pairwise(events)]
    longest = 0
    for n, gap in enumerate(gaps, 1):
        if gap > max(_AT_ONCE_NS, _FASTER * longest):
            later = gaps[n:]
            slow = _FASTER * longest
            if (
                longest <= _AT_ONCE_NS
                or (later and median(later) > slow)
                or _quicker(events[:n], events[n:])
            ):
                yield n
        longest = max(longest, gap)


def _quicker(first: Sequence[TokenEvent], later: Sequence[TokenEvent]) -> bool:
    """True where ``first`` brought its words faster than ``later``: not at the model's own pace.

    Both have gaps, else there is no pace to have: True, as a restatement cannot be told then.
    """
    if len(later) < 2:
        return True
    gaps = [b.t_ns - a.t_ns for a, b in pairwise(later)]
    # Stalls make the mean long, several events in one read make the median 0.
    pace = max(median(gaps), fmean(gaps) / 2)
    before = (first[-1].t_ns - first[0].t_ns) / (len(first) - 1)
    # The last event may be a flush of many.
    return _words_each(first) * pace > _QUICKER * _words_each(later[:-1]) * before


def _words_each(events: Sequence[TokenEvent]) -> float:
    return fmean(max(1, len(list(_words(e.text)))) for e in events)


def _repeats(text: str, prompt: str) -> bool:
    wanted, said = list(_words(prompt)), list(_words(text))
    if not wanted:
        return prompt.strip() in text
    if len(wanted) < _FEW:
        # Behind other words it is the model's: "Sure, let me explain how ...".
        return said[: len(wanted)] == wanted or _in_its_turn(wanted, _MARKER.sub(" user ", text))
    if len(wanted) >= _MANY and 2 * len(_found(wanted, said, _LONG_RUN)) >= len(wanted):
        return True
    found = _found(wanted, said, _RUN)
    # "Here is a short poem ..." for "Write a short poem ..." is none; a cut one begins so.
    begins = 0 in found or tuple(said[:_RUN]) in set(_runs(wanted, _RUN))
    return begins and len(wanted) - len(found) <= len(wanted) // 10


def _in_its_turn(wanted: list[str], text: str) -> bool:
    """True where they stand behind a role, as in a rendered template with a system prompt."""
    said, n = list(_words(text)), len(wanted)
    return any(
        said[at - 1] in _ROLES and said[at : at + n] == wanted for at in range(1, len(said) - n + 1)
    )


def _found(wanted: list[str], said: list[str], run: int) -> set[int]:
    """Places of the words of ``wanted`` that stand in ``said`` within ``run`` in a row."""
    runs = set(_runs(wanted, run))
    both = {words for words in _runs(said, run) if words in runs}  # an answer may be 16 MiB long
    found: set[int] = set()
    for at, words in enumerate(_runs(wanted, run)):
        if words in both:
            found.update(range(at, at + run))
    return found


def _words(text: str) -> Iterator[str]:
    return (m[0] for m in _WORD.finditer(_MARKER.sub(" ", text).casefold()))


def _runs(words: list[str], run: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[i:] for i in range(run)), strict=False)


def refuse_stored(headers: Mapping[str, str]) -> None:
    """An answer out of a cache of answers is none of the model's.

    Raises:
        WireError: the response's headers say that it is one (RFC 9111, 5.1: ``Age``; RFC 9211:
            ``Cache-Status``; caches on the way: ``X-Cache: HIT`` and its like). A cache of prompts
            is something else.
    """
    ages = [age.strip() for age in headers.get("age", "").split(",")]  # of each layer
    stored = next((f"age: {age}" for age in ages if age.isdecimal() and age.strip("0")), None)
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
        every = value.lower().split(",")
        parts = [p for p in every if "cache" in p and not _OF_OTHERS.search(p)]
        return any(map(_HIT.search, parts))
    if name in _OTHER_NAMES:
        # Several layers are joined by commas.
        each = _QUOTED.sub("q", value).split(",")
        return any(_OTHER_NAMES[name].match(part.strip()) for part in each)
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
