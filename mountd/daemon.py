"""``python -m mountd.daemon``: the processes behind one mount, started by ``openshelf mount``.

Everything it needs comes as one JSON object over standard input, a pipe: no token ever stands in an argument list or
an environment. Its one line on standard output says how the start ended. Descriptors that a former supervisor or the
service manager hands over are taken over: the mount goes on.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from mountd import handover, log
from mountd.cache.layout import Layout
from mountd.interfaces import MountConfig, Stack
from mountd.orders import Orders
from mountd.shared_state import LAYOUT
from mountd.supervisor import Supervisor
from mountd.systemd import ServiceManager
from openshelf.errors import OpenshelfError

_logger = logging.getLogger(__name__)

PASSTHROUGH_VARIABLE = "OPENSHELF_PASSTHROUGH"
"""Set to 0, it switches passthrough off."""
PROGRAM = ("-m", "mountd.daemon")
"""What follows the interpreter."""


def _build(config: MountConfig) -> Stack:
    from mountd.node import build

    return build(config)


def _preload() -> None:
    """Import what every worker needs before the first fork: a replacement then starts in milliseconds."""
    import mountd.node  # noqa: F401


def _tell(told: Mapping[str, Any]) -> None:
    """Print the one line for whoever started us, and let go of the pipe."""
    try:
        print(json.dumps(told, ensure_ascii=False), flush=True)
    except BrokenPipeError:
        _logger.warning("nobody waited for the mount to answer")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def main() -> int:
    """Run until unmounted; the exit code."""
    if sys.argv[1:] == [handover.CHECK_FLAG]:
        _preload()
        print(LAYOUT)
        return 0
    held = handover.adopt(os.environ)
    body = sys.stdin.buffer.read()
    orders = Orders.from_json(body)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    cache = orders.config.cache
    try:
        Layout.prepare(cache)  # before anything is written there: in a folder of others, a log may be a link elsewhere
        log.configure(cache, foreground=orders.foreground)
    except OpenshelfError as error:
        _tell({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return 1
    except OSError as error:
        _tell({"error": {"code": "bad_cache", "message": f"The cache {cache} cannot be used: {error}", "hint": ""}})
        return 1
    os.chdir("/")  # nothing of ours may lie inside the mount
    try:
        supervisor = Supervisor(
            orders.config,
            _build,
            _tell,
            transport=orders.transport,
            passthrough=os.environ.get(PASSTHROUGH_VARIABLE) != "0",
            preload=_preload,
            held=held,
            program=handover.Program(PROGRAM, body),
            manager=ServiceManager.from_environment(os.environ),
        )
        return supervisor.run()
    except OpenshelfError as error:
        _logger.error("%s", error.line())
        _tell({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return 1
    except Exception:
        _logger.exception("the mount failed")
        raise


if __name__ == "__main__":
    sys.exit(main())
