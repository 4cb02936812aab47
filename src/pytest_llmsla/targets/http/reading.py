"""What all dialects share in reading an event: strict JSON, error objects, sane numbers, text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...wire.errors import WireError
from ...wire.said import error_words, short
from ...wire.sse import Event
from .dialect import Piece

MOST_OUTPUT = 1_000_000
MOST_PROMPT = 100_000_000
_LONGEST_MS = 1e12
_DONE = b"[DONE]"
_WHITE = b" \t\n\r"
_ANSWER_KEYS = frozenset(("usage", "token", "content", "text", "generated_text", "details"))
_CHOICE_KEYS = ("delta", "message", "text", "finish_reason", "usage", "error")
_DECODE = json.JSONDecoder().raw_decode  # json.loads looks at its options for every event
_FAILURE = re.compile(r"error|exception|traceback|fail|abort", re.I)
"""In the name of an event, in a key, or in a word that says what an object is."""
_ALIVE = ("ping", "keepalive", "keep-alive", "heartbeat")
_KINDS = ("type", "object", "status", "state", "event", "code")
_STATUS_KEYS = ("code", "status", "status_code", "statusCode", "errcode")
_CODES = ("code", "errcode")
_NUMBER = re.compile(r"-?[0-9]{1,9}(?=[\s:,]|$)")
_SHORT_KEYS = ("err", "errmsg", "fault")
_NO_ERROR: tuple[Any, ...] = (None, False, "", {}, [], "null", "none", "None", "0", "ok", "OK")
_NO_FAILURE: tuple[Any, ...] = (None, False, 0, [], {})
_LIFE = (
    "0 200 ok okay success successful successfully succeeded none null ping pong heartbeat alive "
    "keep keepalive queued pending waiting processing generating running working started starting "
    "in progress please wait request done completed finished 成功 操作成功 请求成功"
)
_HARMLESS = frozenset(_LIFE.split(" "))
"""Words of success and signs of life: an object that says no other word reports no failure."""
_BROKEN = (
    r"error|exception|fail|abort|cancel|insufficient|unavailable|overload|time.?out|timed.?out"
    r"|interrupt|disconnect|crash|preempt|kill|shut.?down"
)
_CLOCK = r"time.?limit|max.?time|deadline|expire"
_FILTER = r"filter|guardrail|moderat|safety|blocked|blocklist|prohibit|recitation|sensitive"
_LOST = re.compile(_BROKEN, re.I)
_CUT_OFF = re.compile(f"{_BROKEN}|{_CLOCK}|{_FILTER}", re.I)
"""In a finish reason: neither the model nor its length ended the answer, but a failure, a clock of
the server's (which cuts just the slow ones) or a filter: it is not what was asked for."""


def read_event(event: Event, interpret: Callable[[dict[str, Any]], Piece]) -> Piece:
    """One event: the end marker, an error, nothing (no data, a ping) or what ``interpret`` says.

    Raises:
        WireError: data that is no JSON object, or no answer that the dialect knows.
    """
    data = event.data.strip()
    if event.name != "message" and _FAILURE.search(event.name):
        return Piece(error=_error_event(data))
    if data == _DONE:
        return Piece(done=True)
    if event.name.lower() in _ALIVE:
        return Piece()
    if not data:
        return Piece()
    payload = parse(data)
    if not isinstance(payload, dict):
        raise WireError(f"malformed event: a JSON object was expected, not {excerpt(data)}")
    try:
        failed = error_in(payload)
        if failed is not None:
            return Piece(error=failed)
        piece = interpret(payload)
        if piece.finish is not None and piece.error is None:
            piece.error = failing(piece.finish)
        return piece
    except RecursionError:
        raise WireError(f"malformed event, nested too deeply: {excerpt(data)}") from None


def parse(data: bytes) -> Any:
    """The JSON value in ``data``.

    Raises:
        WireError: it is no UTF-8, no JSON, nested too deeply, or holds an absurdly long number.
    """
    try:
        text = data.strip(_WHITE).decode("utf-8")
        value, end = _DECODE(text)
        if end == len(text):
            return value
    except UnicodeDecodeError:
        raise WireError(f"malformed event, not UTF-8: {excerpt(data)}") from None
    except (ValueError, RecursionError):  # ValueError: bad JSON, or an int of over 4300 digits
        pass
    raise WireError(f"malformed event, not JSON: {excerpt(data)}")


def excerpt(data: bytes) -> str:
    """The start of ``data``, safe to print: quoted, control characters and non-ASCII escaped."""
    head = ascii(data[:80].decode("utf-8", "replace"))
    return head if len(data) <= 80 else f"{head}…"


def _error_event(data: bytes) -> str:
    try:
        said = error_words(json.loads(data.decode("utf-8")))
    except (ValueError, RecursionError):
        said = None
    return clean(short(said or data.decode("utf-8", "replace"))) or "an error event without words"


def error_in(payload: Mapping[str, Any]) -> str | None:
    """The words of an error object in any of its usual shapes; None when ``payload`` is none."""
    said = payload.get("error")
    answers = any(map(payload.get, _ANSWER_KEYS))
    failed = bool(payload.get("errors")) or said not in _NO_ERROR
    failed = failed or payload.get("object") == "error" or _has_failing_status(payload)
    if not (failed or answers):  # an error without words may be a key that is always there
        failed = said in ({}, []) and not payload.get("choices")
        failed = failed or (not _chosen(payload.get("choices")) and _speaks_of_failure(payload))
    if not failed:
        return None
    words = error_words(payload) or json.dumps(payload)
    return clean(short(words)) or "an error object without words"


def _chosen(choices: Any) -> bool:
    """True where a choice says anything, or is none that could be looked at."""
    if not isinstance(choices, list):
        return bool(choices)
    return any(not isinstance(c, dict) or any(map(c.get, _CHOICE_KEYS)) for c in choices)


def _speaks_of_failure(payload: Mapping[str, Any]) -> bool:
    """True for an object without an answer that reports a failure: services and what stands before
    them have many shapes for that, and none of them may pass for an empty event."""
    message = payload.get("message", payload.get("msg"))
    if isinstance(message, str) and not _harmless(message):
        return True
    if not _harmless(payload.get("detail")) or payload.get("success") is False:
        return True
    for key, value in payload.items():
        if (key in _SHORT_KEYS or _FAILURE.search(key)) and not _harmless(value):
            return True
        if key in _CODES and not (_harmless(value) or isinstance(value, int)):
            return True
        if key in _KINDS and isinstance(value, str) and _LOST.search(value):
            return True
    return False


def _harmless(value: Any) -> bool:
    """True for a value that reports no failure: nothing, 0, or words of success or of life."""
    if isinstance(value, str):
        return _HARMLESS.issuperset(re.findall(r"\w+", value.lower())) and len(value) < 100
    return value in _NO_FAILURE


def _has_failing_status(payload: Mapping[str, Any]) -> bool:
    """True for one of HTTP's failures, or a status of its own that is not 0, also beside text."""
    own = payload.get("base_resp")  # MiniMax's
    if isinstance(own, Mapping) and not _harmless(own.get("status_code")):
        return True
    return any(_is_failing_status(payload.get(key)) for key in _STATUS_KEYS)


def _is_failing_status(value: Any) -> bool:
    """True for 400 and above and below 0, as a number or at the start of a text."""
    if isinstance(value, str) and (number := _NUMBER.match(value)):
        value = int(number[0])
    return isinstance(value, int) and (value >= 400 or value < 0)


def failing(finish: str | None) -> str | None:
    """What to say of a finish reason that means failure; None for one that ends an answer."""
    if finish is None or not _CUT_OFF.search(finish):
        return None
    return f"the server ended the answer itself: finish reason {short(finish)}"


def count(value: Any, what: str, most: int) -> int | None:
    """``value`` as a number of tokens; None where the server says null.

    Raises:
        WireError: it is no whole number from 0 to ``most``.
    """
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= most:
        raise WireError(
            f"absurd {what}: {ascii(value)[:40]}; a whole number from 0 to {most} was expected"
        )
    return value


def output_count(value: Any, what: str) -> int | None:
    """:func:`count` of generated tokens. Bounded, since every one of them becomes a sample."""
    return count(value, what, MOST_OUTPUT)


def prompt_count(value: Any, what: str) -> int | None:
    """:func:`count` of prompt tokens."""
    return count(value, what, MOST_PROMPT)


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """``value`` as an object; empty for null.

    Raises:
        WireError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise WireError(f"malformed event: {what} is no object: {ascii(value)[:40]}")
    return value


def items(value: Any, what: str) -> list[Any]:
    """``value`` as a list; empty for null.

    Raises:
        WireError: it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise WireError(f"malformed event: {what} is no list: {ascii(value)[:40]}")
    return value


def text(value: Any, what: str) -> str:
    """``value`` as text; empty for null.

    Raises:
        WireError: it is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise WireError(f"malformed event: {what} is no text: {ascii(value)[:40]}")
    return clean(value)


def word(value: Any, what: str) -> str | None:
    """:func:`text` where an empty one means nothing."""
    return text(value, what) or None


def clean(value: str) -> str:
    """``value`` with each half of a surrogate pair replaced: it could not be written anywhere."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def server_times(timings: Mapping[str, Any]) -> dict[str, float] | None:
    """llama.cpp's ``timings``: ms it spent on the prompt and on decoding; None without them."""
    out: dict[str, float] = {}
    for name, key in (("prefill", "prompt_ms"), ("decode", "predicted_ms")):
        value: Any = timings.get(key)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and 0 <= value < _LONGEST_MS:  # neither NaN nor infinite
            out[name] = float(value)
    return out or None
