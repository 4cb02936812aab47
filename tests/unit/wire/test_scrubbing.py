"""A secret that a server repeats is known again, however it is written and wherever it was cut."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from html import escape
from urllib.parse import quote, quote_plus

import pytest

from pytest_llmsla.wire.secret import Scrubber, Secret

KEY = 'sk-Zz"w\\x/+=&<Key>9987zyxwvUT'
SCRUB = Scrubber([Secret(KEY)]).scrub


@pytest.mark.parametrize(
    "written",
    [
        KEY,
        KEY.upper(),
        json.dumps(KEY)[1:-1],
        json.dumps(json.dumps(KEY))[3:-3],
        repr(KEY)[1:-1],
        quote(KEY),
        quote(KEY, safe=""),
        quote_plus(KEY),
        quote(KEY, safe="").lower(),
        escape(KEY),
        b64encode(KEY.encode()).decode().rstrip("="),
    ],
)
def test_a_secret_is_known_however_it_is_written(written: str) -> None:
    """As JSON, a URL, HTML, base64 or ``repr`` write it, in any case."""
    assert SCRUB(f"bad key {written}, sorry") == "bad key ***, sorry"


@pytest.mark.parametrize("before", ["", "x", "Bearer ", "user:", "Authorization: Bearer "])
@pytest.mark.parametrize("behind", ["", "!", "\r\n", ", and more"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
def test_a_secret_is_known_inside_what_base64_holds(
    before: str, behind: str, encode: Callable[[bytes], bytes]
) -> None:
    """A gateway's log may hold the whole header so: nothing of it may be decoded into the key."""
    found = SCRUB(encode(f"{before}{KEY}{behind}".encode()).decode())
    assert "***" in found
    assert len(found) < 4 + len(b64encode(f"{before}{behind}".encode())) + 8


@pytest.mark.parametrize("length", range(8, len(KEY)))
def test_the_beginning_of_a_secret_is_known_where_a_text_was_cut(length: int) -> None:
    """Messages are cut to a readable length, and the cut may fall into an echoed key."""
    assert SCRUB(f"bad key {KEY[:length]} (401)") == "bad key *** (401)"
    assert SCRUB(f"bad key {json.dumps(KEY)[1:length]}") == "bad key ***"


@pytest.mark.parametrize("end", ["", "…", "'…", '"'])
def test_four_characters_at_a_cut_are_known(end: str) -> None:
    """There the rest of the secret would have followed; elsewhere four say nothing."""
    assert SCRUB(f"bad key {KEY[:4]}{end}") == f"bad key ***{end}"
    assert SCRUB(f"sk-Zebra and {KEY[:4]} too") == f"sk-Zebra and {KEY[:4]} too"


def test_a_scheme_before_a_key_does_not_hide_it() -> None:
    """A variable may hold ``Bearer …``, and a server repeat what follows."""
    scrub = Scrubber([Secret("Bearer abcdefghij1234")]).scrub
    assert scrub("token abcdefghij1234 is unknown") == "token *** is unknown"


def test_an_address_is_known_whole_only() -> None:
    """It begins like other addresses, which a message has to name."""
    scrub = Scrubber([Secret("http://me:hidden@127.0.0.1:3128")]).scrub
    assert scrub("connecting to http://me:8000 failed") == "connecting to http://me:8000 failed"
    assert scrub("via http://me:hidden@127.0.0.1:3128") == "via ***"


def test_letters_that_grow_in_lower_case_hide_nothing() -> None:
    """Positions in a text are its own."""
    assert SCRUB(f"İİİ {KEY[:12]} İ") == "İİİ *** İ"
