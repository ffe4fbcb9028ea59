"""The loop between the kernel and the file system: threads that take requests from the device and answer them."""

from __future__ import annotations

import errno
import logging
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from mountd.kernel.answers import Answerer
from mountd.kernel.operations import Answer, Operations, Request
from mountd.kernel.processors import IdleProcessors
from mountd.kernel.protocol import IN_HEADER, INTERRUPT_IN, RESENT_BIT, Opcode
from mountd.kernel.receiving import Receiver
from mountd.shared_state import SLOTS, Counter, SharedState
from openshelf.errors import OpenshelfError

_logger = logging.getLogger(__name__)

_HANDED_OVER = frozenset(map(int, (Opcode.READ, Opcode.READDIR, Opcode.READDIRPLUS)))
"""Requests that may take long (a disk, the network, a large folder): another thread receives meanwhile. All others
are answered by the receiving thread itself, which saves waking another: most of the cost of a small request."""

_UNIQUE = slice(8, 16)
"""Where ``unique`` stands in a request."""
_NOTHING = bytes(8)


class Channel:
    """Serves one connection over its descriptors until it is unmounted.

    One thread at a time receives. Before it turns to something slow it passes that role on to a thread that waits for
    it, or to a new one (up to ``SLOTS``). Thread ``i`` uses ``devices[i % len(devices)]``: an answer must go to the
    descriptor its request came from. A request lies in shared memory while it is worked on, its ``unique`` set to 0
    once it is answered: on a kernel without RESEND the next worker finds there what it still owes.
    """

    def __init__(
        self, devices: Sequence[int], state: SharedState, operations: Operations, processors: IdleProcessors
    ) -> None:
        self._devices = devices
        self._state = state
        self._operations = operations
        self._handlers = {**operations.handlers, int(Opcode.INTERRUPT): self._interrupt}
        self._receiving = threading.Lock()
        self._receiver = Receiver(processors)
        self._lock = threading.Lock()
        self._waiting = 0
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()

    def start(self, *, answer_left_over: bool) -> None:
        """Start the threads. ``answer_left_over``: first answer what an earlier worker had taken (no RESEND)."""
        left_over = [slot for slot in range(SLOTS) if any(self._state.request_buffer(slot)[_UNIQUE])]
        needed = max(left_over, default=0) + 1 if answer_left_over else 1
        with self._lock:
            for _ in range(needed):
                self._add_thread(answer_left_over=answer_left_over)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the file system is unmounted; False when the time is over first."""
        return self._ended.wait(timeout_s)

    def _add_thread(self, *, answer_left_over: bool) -> None:
        slot = len(self._threads)
        thread = threading.Thread(target=self._run, args=(slot, answer_left_over), name=f"channel-{slot}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, slot: int, answer_left_over: bool) -> None:
        device = self._devices[slot % len(self._devices)]
        buffer = self._state.request_buffer(slot)
        counters = self._state.counters(slot)
        answerer = Answerer(device)
        receiving = False
        try:
            if answer_left_over and any(buffer[_UNIQUE]):
                counters[Counter.RESENT] += 1
                self._serve(_request(slot, buffer, counters), answerer)
            while True:
                buffer[_UNIQUE] = _NOTHING
                if not receiving:
                    self._become_receiver()
                    receiving = True
                if not self._receiver.receive(device, buffer, alone=self._waiting + 1 >= len(self._threads)):
                    break
                request = _request(slot, buffer, counters)
                if request.opcode in _HANDED_OVER:
                    at_hand = self._operations.at_hand(request)
                    if at_hand is not None:
                        self._answer(request, at_hand, answerer)
                        continue
                    receiving = False
                    self._hand_over()
                self._serve(request, answerer)
        finally:
            buffer[_UNIQUE] = _NOTHING
            if receiving:
                self._receiving.release()
            answerer.close()
            self._ended.set()

    def _become_receiver(self) -> None:
        with self._lock:
            self._waiting += 1
        self._receiving.acquire()
        with self._lock:
            self._waiting -= 1

    def _hand_over(self) -> None:
        """Let another thread receive, a new one when all are busy."""
        with self._lock:
            if self._waiting == 0 and len(self._threads) < SLOTS:
                try:
                    self._add_thread(answer_left_over=False)
                except RuntimeError as error:
                    # No memory or too many threads: those there are take their turns.
                    self._threads.pop()
                    _logger.warning("a further thread cannot be started: %s", error)
        self._receiving.release()

    def _serve(self, request: Request, answerer: Answerer) -> None:
        """Answer a request."""
        taken = self._answer(request, self._handle(request), answerer)
        if not taken and request.opcode == Opcode.OPEN:
            self._operations.abandoned(request)

    def _handle(self, request: Request) -> Answer:
        handler = self._handlers.get(request.opcode)
        if handler is None:
            return errno.ENOSYS
        try:
            return handler(request)
        except OSError as error:
            return error.errno or errno.EIO
        except OpenshelfError as error:
            _logger.error("request %d failed: %s", request.opcode, error.line())
            return errno.EIO
        except Exception:  # whatever goes wrong in one request must not end the thread: all others go on
            _logger.exception("request %d failed", request.opcode)
            return errno.EIO

    def _answer(self, request: Request, answer: Answer, answerer: Answerer) -> bool:
        """Send ``answer``; False when it was a success that nobody took."""
        if isinstance(answer, tuple):
            return answerer.data(request.unique, answer)
        if answer is None:
            return True
        if isinstance(answer, int):
            answerer.error(request.unique, answer)
            return True
        try:
            return answerer.file(request.unique, answer)
        except OSError as error:
            _logger.error("a cache file cannot be read: %s", error.strerror)
        try:
            return answerer.data(request.unique, (answer.instead(),))
        except OSError as error:
            _logger.error("nor can its bytes be had from the store: %s", error.strerror)
            request.counters[Counter.READ_ERRORS] += 1
            answerer.error(request.unique, errno.EIO)
            return True

    def _interrupt(self, request: Request) -> None:
        """Let a READ go whose reader is being killed, so that a hung store never makes an unkillable process.

        Only for SIGKILL: another signal's handler returns to the read, which files always complete. The thread that is
        working on it finds its own answer unwanted.
        """
        (unique,) = INTERRUPT_IN.unpack_from(request.body)
        for slot in range(len(self._threads)):
            buffer = self._state.request_buffer(slot)
            _, opcode, working_on, _, _, _, pid, _, _ = IN_HEADER.unpack_from(buffer)
            if working_on & ~RESENT_BIT == unique & ~RESENT_BIT and opcode == Opcode.READ and _is_being_killed(pid):
                Answerer(self._devices[slot % len(self._devices)]).error(working_on, errno.EINTR)
                return


def _request(slot: int, buffer: memoryview, counters: memoryview) -> Request:
    """The request that lies in ``buffer``, counted."""
    length, opcode, unique, nodeid, uid, _, pid, _, _ = IN_HEADER.unpack_from(buffer)
    counters[Counter.REQUESTS] += 1
    if unique & RESENT_BIT:
        counters[Counter.RESENT] += 1
    return Request(opcode, unique, nodeid, uid, pid, slot, buffer[IN_HEADER.size : length], counters)


def _is_being_killed(pid: int) -> bool:
    """Whether SIGKILL is pending for a thread (``SigPnd``, ``ShdPnd`` of proc_pid_status(5)); True when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return True
    pending = [line.split()[1] for line in text.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)
