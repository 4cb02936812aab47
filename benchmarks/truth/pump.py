"""The inner loop of the truth server in C, where there is a compiler: three times the rate.

What Python takes between two sends is longer than the send. The loop is the same: spin until the
token that is due first, note the time, send, note the time.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from truth.stream import Conn, Stream

_SOURCE = Path(__file__).with_name("pump.c")


class _Stream(ctypes.Structure):
    _fields_ = (
        ("fd", ctypes.c_int),
        ("next", ctypes.c_int),
        ("last", ctypes.c_int),
        ("short_by", ctypes.c_int),
        ("data", ctypes.POINTER(ctypes.c_char_p)),
        ("size", ctypes.POINTER(ctypes.c_int32)),
        ("due", ctypes.POINTER(ctypes.c_int64)),
        ("before", ctypes.POINTER(ctypes.c_int64)),
        ("after", ctypes.POINTER(ctypes.c_int64)),
    )


def library() -> ctypes.CDLL | None:
    """The compiled loop, made once for each source; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"truth-pump-{os.getuid()}-{digest}.so"
    if not made.exists():
        fresh = made.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", str(fresh), str(_SOURCE)], check=False
        )
        if done.returncode != 0:
            return None
        fresh.replace(made)
    return ctypes.CDLL(str(made))


class Pump:
    """Sends the tokens of its streams that are neither the first nor the last."""

    def __init__(self, made: ctypes.CDLL) -> None:
        self._run = made.pump
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
        self._streams: list[tuple[Stream, _Stream]] = []
        self._array: ctypes.Array[ctypes._Pointer[_Stream]] | None = None

    @property
    def busy(self) -> bool:
        """True while it has a stream."""
        return bool(self._streams)

    def prepare(self, stream: Stream) -> None:
        """Lay out a stream while nothing is due."""
        n = len(stream.events)
        stream.laid_out = _Stream(
            stream.conn.sock.fileno(),
            0,
            n - 1,
            0,
            (ctypes.c_char_p * n)(*stream.events),
            (ctypes.c_int32 * n)(*map(len, stream.events)),
            (ctypes.c_int64 * n)(*stream.due),
            (ctypes.c_int64 * n)(),
            (ctypes.c_int64 * n)(),
        )

    def take(self, stream: Stream) -> None:
        """From its next token on, a stream is sent here."""
        laid_out = stream.laid_out
        laid_out.next = stream.next
        self._streams.append((stream, laid_out))
        self._lay_out()

    def forget(self, conn: Conn) -> None:
        """A connection is about to be closed: what it carried is sent no more, and is on record."""
        gone = [pair for pair in self._streams if pair[0].conn is conn]
        if gone:
            self._streams = [pair for pair in self._streams if pair[0].conn is not conn]
            self._lay_out()
        for stream, laid_out in gone:
            stream.closed = True
            self._bring_back(stream, laid_out)

    def _lay_out(self) -> None:
        pointers = [ctypes.pointer(laid_out) for _, laid_out in self._streams]
        self._array = (ctypes.POINTER(_Stream) * len(pointers))(*pointers)

    def run(self, until_ns: int) -> tuple[Stream, int] | None:
        """Send what is due before ``until_ns``.

        A stream that the caller has to see to, with the bytes of its last token that the socket did
        not take (-1: it broke): it is no longer sent here. None: there is no such stream.
        """
        which = self._run(self._array, len(self._streams), until_ns)
        if which < 0:
            return None
        stream, laid_out = self._streams.pop(which)
        self._lay_out()
        self._bring_back(stream, laid_out)
        return stream, laid_out.short_by

    @staticmethod
    def _bring_back(stream: Stream, laid_out: _Stream) -> None:
        done = slice(stream.next, laid_out.next)
        stream.before += laid_out.before[done]
        stream.after += laid_out.after[done]
        stream.next = laid_out.next
