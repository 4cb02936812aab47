"""Clients in plain scripts: ours, and an aiohttp one as people write it.

    python closed_loop.py ours|ours-bare|aiohttp LOAD.json OUT.json

Warm-up requests run first, to their end; then the judged ones, and their CPU time is this process's
own (``getrusage``). The aiohttp client runs in an environment of its own, so that nothing but the
standard library is imported here.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

Asks = list[tuple[str, str]]
Result = list[dict[str, Any]]


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def body(prompt: str, tokens: int) -> dict[str, Any]:
    """One request."""
    return {
        "model": "truth",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
    }


class AiohttpClient:
    """A plain aiohttp client: a stamp for every read, then lines, then JSON."""

    def __init__(self, load: dict[str, Any]) -> None:
        self._load = load
        self._loop = asyncio.new_event_loop()
        self._session: Any = None

    def run(self, asks: Asks) -> Result:
        """All asks, ``concurrency`` at a time."""
        return self._loop.run_until_complete(self._all(asks))

    async def _all(self, asks: Asks) -> Result:
        import aiohttp  # type: ignore[import-not-found]

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        left, out = deque(asks), Result()

        async def stream() -> None:
            while left:
                out.append(await self._ask(*left.popleft()))

        await asyncio.gather(*(stream() for _ in range(self._load["concurrency"])))
        return out

    async def _ask(self, key: str, prompt: str) -> dict[str, Any]:
        stamps: list[int] = []
        rest = b""
        url = f"{self._load['url']}/v1/chat/completions"
        payload = body(prompt, self._load["tokens"])
        start = time.perf_counter_ns()
        async with self._session.post(url, json=payload) as response:
            async for data in response.content.iter_any():
                now = time.perf_counter_ns()
                rest += data
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if not line.startswith(b"data: ") or line == b"data: [DONE]":
                        continue
                    choices = json.loads(line[6:])["choices"]
                    if choices and choices[0]["delta"].get("content"):
                        stamps.append(now)
        return {"key": key, "start_ns": start, "stamps_ns": stamps, "kernel": False}

    def close(self) -> None:
        """Close the session."""
        self._loop.run_until_complete(self._session.close())
        self._loop.close()


class OurClient:
    """Our wire room; see ``our_reader.py``."""

    def __init__(self, load: dict[str, Any], *, bare: bool) -> None:
        from peers.our_reader import Asker

        self._asker = Asker(load["url"], load["tokens"], load["concurrency"], bare=bare)

    def run(self, asks: Asks) -> Result:
        """All asks, ``concurrency`` at a time."""
        return self._asker.run(asks)

    def close(self) -> None:
        """Close the connections."""
        self._asker.close()


def main() -> int:
    """Run one load."""
    which, load_file, out = sys.argv[1:4]
    load = json.loads(Path(load_file).read_text("utf-8"))
    client: OurClient | AiohttpClient
    if which == "aiohttp":
        client = AiohttpClient(load)
    else:
        client = OurClient(load, bare=which == "ours-bare")
    asks = [(k, p) for k, p in load["asks"]]
    client.run([a for a in asks if not a[0].startswith("m")])
    before = cpu_s()
    result = client.run([a for a in asks if a[0].startswith("m")])
    used, done = cpu_s() - before, time.perf_counter_ns()
    client.close()
    found = {"cpu_s": used, "done_ns": done, "requests": result}
    Path(out).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
