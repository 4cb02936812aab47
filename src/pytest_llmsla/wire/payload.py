"""A request as bytes."""

from __future__ import annotations


class Payload:
    """Bytes to send; their ``repr`` shows nothing, because a key may be among them."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data

    def after(self, sent: int) -> Payload | None:
        """What is left once so many bytes are sent; nothing is copied."""
        return Payload(memoryview(self._data)[sent:]) if sent < len(self._data) else None

    def before(self, other: Payload) -> Payload:
        """This and then ``other``."""
        return Payload(b"".join((self._data, other.reveal())))

    def reveal(self) -> bytes | memoryview:
        """The bytes. Use them in an expression; never keep them in a variable."""
        return self._data

    def __repr__(self) -> str:
        return f"<{len(self._data)} bytes>"
