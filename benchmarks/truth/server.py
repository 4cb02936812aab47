"""The truth server: streams on exact schedules and notes when it sent what.

    python -m truth.server --core 1          # prints {"port": …}

OpenAI's chat route over HTTP/1.1, chunked, keep-alive, in one thread that never sleeps while a
stream is open: it takes turns between what is due and what has come in. For every token it keeps
``CLOCK_MONOTONIC`` (``time.perf_counter_ns``) just before and just after ``send``; for every
request the kernel's own stamp of its last bytes, so that neither is spoilt by other streams' turns.
Where there is a C compiler, tokens between the first and the last are sent by a loop in C (pump.c).

Beside the model's routes: ``POST /truth/plan`` (a :class:`Plan` as JSON; forgets all records),
``GET /truth/records``, ``POST /truth/quit``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import select
import socket
import struct
import sys
import time
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from truth import script
from truth.pump import Pump, library
from truth.schedule import Plan
from truth.stream import Conn, Stream

SO_TIMESTAMPNS = 35
_RETRY_NS = 200_000
_SLICE_NS = 200_000
_REQUEST_ID = re.compile(r"(?im)^x-request-id:\s*(\S+)")
_KEY = re.compile(r"key=([A-Za-z0-9]+)")


def _stamp(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The kernel's receive stamp on the monotonic clock, else now."""
    before = time.perf_counter_ns()
    wall = time.time_ns()
    now = (before + time.perf_counter_ns()) // 2
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, ns = struct.unpack("qq", data[:16])
            return now - (wall - (int(seconds) * 1_000_000_000 + int(ns)))
    return now


class Server:
    """One listening socket, one thread."""

    def __init__(self, port: int, *, until_eof: bool = False, resting: bool = False) -> None:
        self._listen = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._listen.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._listen.setblocking(False)
        self.port: int = self._listen.getsockname()[1]
        self._poll = select.epoll()
        self._poll.register(self._listen.fileno(), select.EPOLLIN)
        if until_eof:
            self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        self._conns: dict[int, Conn] = {}
        self._due: list[tuple[int, int, Stream]] = []
        self._turn = 0
        self._plan = Plan()
        self._streams: list[Stream] = []
        self._quit = False
        self._resting = resting
        made = None if resting else library()
        self._pump = None if made is None else Pump(made)

    def run(self) -> None:
        """Serve until told to quit."""
        due, clock, poll = self._due, time.perf_counter_ns, self._poll.poll
        while not self._quit:
            now = clock()
            if self._pump is not None and self._pumping:
                # It ends for whatever else is due, and for a look at what has come in.
                ended = self._pump.run(min(due[0][0] if due else now + _SLICE_NS, now + _SLICE_NS))
                if ended is not None:
                    self._take_back(*ended)
                    continue
            if due and due[0][0] <= now:
                self._send_due()
                # Requests are taken up between tokens only where nothing more is due: their
                # arrival is the kernel's stamp, so that waiting costs no truth.
                continue
            wait = 0.0 if due or self._pumping else -1.0
            if due and self._resting:
                wait = max(due[0][0] - now, 0) / 1e9
            for fd, _ in poll(wait):
                if fd == self._listen.fileno():
                    self._accept()
                elif conn := self._conns.get(fd):
                    self._receive(conn)
                else:
                    self._quit = True  # the end of stdin
        self._close()

    @property
    def _pumping(self) -> bool:
        return self._pump is not None and self._pump.busy

    def _take_back(self, stream: Stream, short_by: int) -> None:
        """A stream that the loop in C is done with."""
        if short_by < 0:
            self._lose(stream)
            return
        self._turn += 1
        moment = stream.due[stream.next]
        if short_by:
            self._hold(stream, stream.events[stream.next - 1][-short_by:])
            stream.stalled = True
            moment = time.perf_counter_ns() + _RETRY_NS
        heappush(self._due, (moment, self._turn, stream))

    def _close(self) -> None:
        for conn in list(self._conns.values()):
            self._drop(conn)
        self._poll.close()
        self._listen.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listen.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._conns[sock.fileno()] = Conn(sock)
            self._poll.register(sock.fileno(), select.EPOLLIN)

    def _drop(self, conn: Conn) -> None:
        fd = conn.sock.fileno()
        if self._conns.pop(fd, None) is not None:
            if self._pump is not None:
                self._pump.forget(conn)
            self._poll.unregister(fd)
            conn.sock.close()

    def _left(self, conn: Conn) -> None:
        """The client is gone, which its socket told before the next send could."""
        for _, _, stream in self._due:
            stream.closed = stream.closed or stream.conn is conn
        self._due[:] = [entry for entry in self._due if entry[2].conn is not conn]
        heapify(self._due)
        self._drop(conn)

    def _receive(self, conn: Conn) -> None:
        try:
            data, ancillary, _, _ = conn.sock.recvmsg(1 << 18, 128)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._left(conn)
            return
        arrived = _stamp(ancillary)
        conn.buffer += data
        while (cut := conn.buffer.find(b"\r\n\r\n")) >= 0:
            head = conn.buffer[:cut].decode("latin-1")
            length = re.search(r"(?im)^content-length:\s*(\d+)", head)
            end = cut + 4 + (int(length[1]) if length else 0)
            if len(conn.buffer) < end:
                return
            body, conn.buffer = conn.buffer[cut + 4 : end], conn.buffer[end:]
            conn.served += 1
            self._answer(conn, head, body, arrived)

    def _answer(self, conn: Conn, head: str, body: bytes, arrived: int) -> None:
        method, target, _ = head.split("\r\n", 1)[0].split(" ", 2)
        path = target.split("?", 1)[0].rstrip("/")
        if (method, path) == ("POST", "/v1/chat/completions"):
            self._chat(conn, head, json.loads(body), arrived)
        elif path == "/v1/models":
            model = {"id": script.MODEL, "object": "model", "created": 0, "owned_by": "truth"}
            self._plain(conn, {"object": "list", "data": [model]})
        elif path in ("/health", "/ping"):
            self._plain(conn, {})
        elif (method, path) == ("POST", "/truth/plan"):
            self._take(conn, body)
        elif path == "/truth/records":
            found = {"plan": self._plan.as_json(), "requests": [s.record() for s in self._streams]}
            self._plain(conn, found)
        elif (method, path) == ("POST", "/truth/quit"):
            self._plain(conn, {})
            self._quit = True
        else:
            self._plain(conn, {"error": {"message": f"no route {path}", "code": 404}}, 404)

    def _plain(self, conn: Conn, said: Any, status: int = 200) -> None:
        body = json.dumps(said).encode()
        reason = {200: "OK", 404: "Not Found"}.get(status, "Bad Request")
        head = (
            f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        # Records are long: only here may a send wait, and no stream is open then.
        conn.sock.setblocking(True)
        try:
            conn.sock.sendall(head.encode() + body)
            conn.sock.setblocking(False)
        except OSError:
            self._drop(conn)

    def _take(self, conn: Conn, body: bytes) -> None:
        if self._due or self._pumping:
            self._plain(conn, {"error": {"message": "streams are open"}}, 400)
            return
        try:
            self._plan = Plan.of(json.loads(body))
        except (ValueError, TypeError) as error:
            self._plain(conn, {"error": {"message": str(error)}}, 400)
            return
        self._streams = []
        gc.collect()
        self._plain(conn, self._plan.as_json())

    def _chat(self, conn: Conn, head: str, ask: dict[str, Any], arrived: int) -> None:
        said = " ".join(_text(m.get("content")) for m in ask.get("messages", ()))
        found = _KEY.search(said)
        key, prompt, plan = found[1] if found else "", len(said.split()), self._plan
        number = len(self._streams)
        if not ask.get("stream"):
            self._plain(conn, script.whole(key, number, plan.length(key), prompt))
            return
        options = ask.get("stream_options") or {}
        stream = Stream(conn, key, number, arrived)
        given = _REQUEST_ID.search(head)
        stream.said_id = given[1] if given else ""
        stream.running = bool(options.get("continuous_usage_stats"))
        count = plan.length(key)
        # A key's draws stand for its request, in whatever order requests come.
        stream.due = plan.moments(_number(key, number), arrived, count)
        halves = list(script.tokens(count, prompt, stream.running))
        halves[0] = script.first(key, count, prompt, stream.running)
        stream.events = [stream.id.join(pair) for pair in halves]  # now, while nothing is due
        before, after = script.role(prompt, stream.running)
        stream.role = before + stream.id + after
        if options.get("include_usage"):
            before, after = script.usage(count, prompt)
            stream.tail = before + stream.id + after
        stream.tail += script.END
        if self._pump is not None:
            self._pump.prepare(stream)
        if not self._resting:
            self._streams.append(stream)
        if not self._send(stream, script.HEAD):
            return
        lead = round(plan.role_lead_ms * 1e6)
        self._turn += 1
        heappush(self._due, (stream.due[0] - lead, self._turn, stream))

    def _send(self, stream: Stream, data: bytes) -> bool:
        """Send all of it or keep the rest for the next turn; False when the client is gone."""
        try:
            sent = stream.conn.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose(stream)
            return False
        if sent < len(data):
            self._hold(stream, data[sent:])
        return True

    def _lose(self, stream: Stream) -> None:
        stream.closed = True
        self._drop(stream.conn)

    def _hold(self, stream: Stream, rest: bytes) -> None:
        """The client's buffers are full."""
        stream.rest = rest
        stream.held = True
        stream.stalls += 1

    def _send_due(self) -> None:
        """One turn of the stream that is due first."""
        due = self._due
        _, turn, stream = due[0]
        if not stream.held and stream.next < len(stream.due) - 1:
            # What nearly every turn is. The last token is followed by the tail at once.
            if not self._send_token(stream):
                heappop(due)
            elif stream.held:
                heapreplace(due, (time.perf_counter_ns() + _RETRY_NS, turn, stream))
            else:
                heapreplace(due, (stream.due[stream.next], turn, stream))
            return
        if stream.rest:
            alive = self._send_rest(stream)
        elif stream.role is not None:
            role, stream.role, stream.held = stream.role, None, False
            alive = self._send(stream, role)
        elif stream.next < len(stream.due):
            alive = self._send_token(stream)
        else:
            tail, stream.tail = stream.tail, b""
            alive = self._send(stream, tail)
        if not alive:
            heappop(due)
        elif stream.rest:
            heapreplace(due, (time.perf_counter_ns() + _RETRY_NS, turn, stream))
        elif self._pump is not None and stream.next < len(stream.due) - 1:
            heappop(due)
            self._pump.take(stream)
        elif stream.next < len(stream.due):
            heapreplace(due, (stream.due[stream.next], turn, stream))
        elif stream.tail:
            heapreplace(due, (0, turn, stream))  # as engines do: right behind the last token
        else:
            heappop(due)

    def _send_token(self, stream: Stream) -> bool:
        data, clock = stream.events[stream.next], time.perf_counter_ns
        stream.next += 1
        stamp = clock()
        try:
            sent = stream.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose(stream)
            return False
        stream.after.append(clock())
        stream.before.append(stamp)
        if sent < len(data):
            self._hold(stream, data[sent:])
            stream.stalled = True
        return True

    def _send_rest(self, stream: Stream) -> bool:
        rest, stream.rest, stream.held = stream.rest, b"", False
        alive = self._send(stream, rest)
        if stream.stalled and not stream.rest:
            stream.stalled = False
            stream.after[-1] = time.perf_counter_ns()
        return alive


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _number(key: str, otherwise: int) -> int:
    digits = key.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return int(digits) if digits.isdigit() else otherwise


def main() -> int:
    """Serve until told to quit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--core", type=int, help="the one core to run on")
    parser.add_argument("--until-eof", action="store_true", help="quit at the end of stdin")
    parser.add_argument(
        "--resting", action="store_true", help="sleep between tokens, and keep no records"
    )
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    gc.freeze()
    gc.disable()  # a collection in the middle of a stream would be a late token
    server = Server(args.port, until_eof=args.until_eof, resting=args.resting)
    print(json.dumps({"port": server.port}), flush=True)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
