"""Wakes the requests that wait for the feed: any number of them, without a thread each."""

from __future__ import annotations

import asyncio


class FeedSignal:
    """Knows the last serial; coroutines wait for a later one, threads announce it."""

    def __init__(self, serial: int) -> None:
        self._serial = serial
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._closing = False

    def attach(self) -> None:
        """Bind to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def advance(self, serial: int) -> None:
        """Announce the event ``serial``; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._advance, serial)

    def _advance(self, serial: int) -> None:
        self._serial = max(self._serial, serial)
        self._wake()

    def close(self) -> None:
        """Send every waiter home; called in the event loop when the catalog stops."""
        self._closing = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_beyond(self, serial: int, timeout_s: float) -> None:
        """Return once there is an event after ``serial``, after ``timeout_s`` seconds, or when the catalog stops."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._serial <= serial and not self._closing:
                    await self._changed.wait()
        except TimeoutError:
            return
