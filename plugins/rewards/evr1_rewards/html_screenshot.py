"""Screenshots of HTML answers by a headless Chromium: no scripts, no network, no other files."""

from __future__ import annotations

import functools
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from evr1_core.scoring import ScoringFailed

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH, HEIGHT, SECONDS = 800, 600, 8.0

_POLICY = (
    "<!doctype html><meta http-equiv=Content-Security-Policy "
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:\">"
)
"""First in the page, so that no script runs and nothing is loaded that doesn't stand in the page itself."""
_REFRESH = re.compile(r"http-equiv(\s{0,20}=\s{0,20}[\"']?\s{0,20})refresh", re.IGNORECASE)
"""The one way to another page that the policy leaves open."""
_UNLIMITED = (
    "import os, resource, sys; hard = resource.getrlimit(resource.RLIMIT_AS)[1]; "
    "resource.setrlimit(resource.RLIMIT_AS, (hard, hard)); os.execv(sys.argv[1], sys.argv[1:])"
)
"""A browser reserves far more address space than it uses; the soft limit of a scoring worker would not let it start."""
_FLAGS = (
    "--headless", "--hide-scrollbars", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--no-first-run", "--mute-audio",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=http://127.0.0.1:9",
    "--force-device-scale-factor=1", "--default-background-color=FFFFFFFF", f"--window-size={WIDTH},{HEIGHT}",
)  # fmt: skip


class NotShown(Exception):
    """The browser made no picture of the page in its time."""


def browser() -> str:
    """Path of the browser: the variable EVR1_BROWSER, else the first one found. Raises ScoringFailed (`missing_dependency`)."""
    for name in filter(None, (os.environ.get("EVR1_BROWSER"), *BROWSERS)):
        if found := shutil.which(name):
            return found
    raise ScoringFailed("missing_dependency: scoring.render needs Chromium or Chrome; install one, or name it in EVR1_BROWSER")


def screenshot(html: str) -> bytes:
    """The page on white, 800 x 600 x 3 bytes. Raises NotShown, ScoringFailed (`missing_dependency`)."""
    shown = _screenshot(browser(), _POLICY + _REFRESH.sub(r"http-equiv\1x", html))
    if shown is None:
        raise NotShown
    return shown


@functools.lru_cache(maxsize=64)
def _screenshot(program: str, page: str) -> bytes | None:
    """A group of answers shares its gold page; what can't be shown is remembered, as finding it out takes all the time there is."""
    from PIL import Image

    with tempfile.TemporaryDirectory(prefix="evr1-page-", ignore_cleanup_errors=True) as folder:
        source, target = Path(folder, "page.html"), Path(folder, "page.png")
        source.write_text(page, encoding="utf-8", errors="replace")
        command = [sys.executable, "-I", "-S", "-c", _UNLIMITED, program, *_FLAGS, f"--user-data-dir={folder}/profile"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium's own sandbox doesn't work for root
        command += [f"--screenshot={target}", source.as_uri()]
        # It stays in the process group of the worker, so that it is killed with it. Its own children end when it does.
        silent = subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=folder, env={"HOME": folder, "PATH": os.defpath}, stdin=silent, stdout=silent, stderr=silent
        )
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()
        if not target.is_file():
            return None
        return Image.open(io.BytesIO(target.read_bytes())).convert("RGB").resize((WIDTH, HEIGHT)).tobytes()
