"""A small OpenAI chat server that sends a token every few milliseconds; one process, many streams.

python steady_server.py --ttft 30 --itl 10      # prints its port
"""

from __future__ import annotations

import argparse
import asyncio
import json


async def _request(reader: asyncio.StreamReader) -> tuple[str, dict[str, object]] | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    route = head.split(" ", 2)[1]
    length = 0
    for line in head.split("\r\n"):
        if line.lower().startswith("content-length:"):
            length = int(line.split(":")[1])
    body = await reader.readexactly(length) if length else b"{}"
    return route, json.loads(body)


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _event(value: object) -> bytes:
    return _chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


async def _stream(
    writer: asyncio.StreamWriter, asked: dict[str, object], ttft: float, itl: float
) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    tokens = int(str(asked.get("max_tokens") or 8))
    for k in range(1, tokens + 1):
        await asyncio.sleep((ttft if k == 1 else itl) / 1000)
        end = "length" if k == tokens else None
        choice = {"index": 0, "delta": {"content": f"w{k} "}, "finish_reason": end}
        usage = {"prompt_tokens": 7, "completion_tokens": k, "total_tokens": 7 + k}
        writer.write(_event({"choices": [choice], "usage": usage}))
        await writer.drain()
    writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    await writer.drain()


async def _serve(ttft: float, itl: float) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (got := await _request(reader)) is not None:
                route, asked = got
                if route.endswith("/chat/completions"):
                    await _stream(writer, asked, ttft, itl)
                    continue
                body = json.dumps({"data": [{"id": "steady"}]}).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    + f"Content-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft", type=float, default=30.0)
    parser.add_argument("--itl", type=float, default=10.0)
    given = parser.parse_args()
    asyncio.run(_serve(given.ttft, given.itl))
