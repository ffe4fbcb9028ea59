"""Processes that have ended, also where nobody takes note of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from mountd.children import has_ended

IDLE = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]


def test_a_process_has_ended_before_its_parent_takes_note() -> None:
    process = subprocess.Popen(IDLE, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert not has_ended(process.pid)
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert has_ended(process.pid)
    assert process.wait() == 0
    assert has_ended(process.pid)


def test_a_process_whose_first_thread_has_ended_lives_on() -> None:
    code = (
        "import ctypes, sys, threading\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 10
        while _state(process.pid) != "Z":
            assert time.monotonic() < deadline, "the first thread ends"
            time.sleep(0.01)
        assert not has_ended(process.pid)
    finally:
        process.kill()
        process.communicate()


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]
