"""The one base class of every error that a user may see."""

from __future__ import annotations


class OpenshelfError(Exception):
    """Something went wrong that a person can act on.

    ``code`` is a stable, lower-case identifier for programs, ``message`` one sentence that names the object,
    ``hint`` what to do next (may be empty). ``exit_code`` is 1 for a failure and 2 for wrong usage.
    No message ever carries a detected personal-data value or a token.
    """

    exit_code = 1

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def line(self) -> str:
        """The error as one line of text."""
        text = self.message.rstrip(".")
        whole = f"{text}. {self.hint}" if self.hint else f"{text}."
        return whole.replace("\n", "\\n").replace("\r", "\\r")  # a file's name may hold either


class UsageError(OpenshelfError):
    """The command was called in a way that cannot work (exit code 2)."""

    exit_code = 2
