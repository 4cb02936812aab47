"""A connection of the truth server, and an answer under way on it."""

from __future__ import annotations

import socket
from typing import Any

from truth import script


class Conn:
    """One connection: what came in and is not yet a request."""

    __slots__ = ("buffer", "served", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.served = 0


class Stream:
    """One answer under way, and its record."""

    __slots__ = (
        "after", "arrived", "before", "closed", "conn", "due", "events", "held", "id", "key",
        "laid_out", "next", "rest", "role", "running", "said_id", "send", "stalled", "stalls",
        "tail",
    )  # fmt: skip

    def __init__(self, conn: Conn, key: str, number: int, arrived: int) -> None:
        self.conn = conn
        self.key = key
        self.id = script.answer_id(number)
        self.arrived = arrived
        self.due: list[int] = []
        self.events: list[bytes] = []
        self.before: list[int] = []
        self.after: list[int] = []
        self.next = 0
        self.role: bytes | None = None
        self.held = True
        """Something goes out before the next token: the role, or what a full buffer kept back."""
        self.send = conn.sock.send
        self.laid_out: Any = None
        """For the loop in C."""
        self.tail = b""
        self.rest = b""
        self.stalled = False
        self.stalls = 0
        self.running = False
        self.closed = False
        self.said_id = ""

    def record(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "key": self.key,
            "id": self.id.decode(),
            "x_request_id": self.said_id,
            "reused": self.conn.served > 1,
            "arrived_ns": self.arrived,
            "due_ns": self.due,
            "before_ns": self.before,
            "after_ns": self.after,
            "stalls": self.stalls,
            "closed": self.closed,
            "continuous_usage": self.running,
        }
