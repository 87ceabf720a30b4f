"""Errors that a user sees. Each names the thing, the place and the remedy.

The command line prints the message alone (no traceback) and exits with `exit_code`.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class Evr1Error(Exception):
    """The work failed."""

    exit_code = 1


class RequestError(Evr1Error):
    """The request is wrong: an unknown name or key, a missing file, a value that can't be."""

    exit_code = 2


class Stopped(Evr1Error):
    """Somebody asked the work to stop by a signal; what was done is kept. The exit code is that of a program which the signal ended."""

    def __init__(self, message: str, name: str) -> None:
        """`name`: of the signal, for example SIGTERM."""
        self.signal, self.exit_code = name, 128 + signal.Signals[name].value
        super().__init__(message)

    def __reduce__(self) -> tuple[type[Stopped], tuple[str, str]]:
        return Stopped, (str(self), self.signal)


class MediaError(Evr1Error):
    """One image or video can't be used. `code` is one of damaged, unsupported, empty, missing, timeout."""

    def __init__(self, path: str, code: str, reason: str) -> None:
        self.path, self.code, self.reason = path, code, reason
        super().__init__(f"{path}: {code}: {reason}")

    def __reduce__(self) -> tuple[type[MediaError], tuple[str, str, str]]:
        return MediaError, (self.path, self.code, self.reason)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, or when none is close the list of all, at most 40."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f" and {len(names) - 40:,} more" if len(names) > 40 else ""
    return f"; known: {', '.join(names[:40])}{more}" if names else ""
