"""The worker behind a mount, as ``openshelf warm`` asks it: short questions, so that its death is only a pause."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from mountd import control
from mountd.kernel.mounting import canonical
from openshelf.errors import OpenshelfError

LOOK_EVERY_S = 0.5
WORKER_WITHIN_S = 60.0
"""How long a worker may be missing before it is given up."""


class MountWorker:
    """The worker of the mount at ``directory``; ``names`` are the paths by which the mount may be called."""

    def __init__(self, directory: Path) -> None:
        self.point = canonical(directory)
        self.names = (self.point, Path(os.path.abspath(directory)))  # noqa: PTH100 (as it was typed)

    def ask(self, command: str, **given: object) -> list[dict[str, Any]]:
        """What the worker answers; asked again when it dies before it does."""
        deadline = time.monotonic() + WORKER_WITHIN_S
        while time.monotonic() < deadline:
            if answers := list(control.order(self.point, command, **given)):
                return answers
            time.sleep(LOOK_EVERY_S)
        raise OpenshelfError("no_worker", f"No worker of {self.point} answers", f"See: openshelf status {self.point}")

    def one(self, command: str, **given: object) -> dict[str, Any]:
        """The last answer."""
        return self.ask(command, **given)[-1]
