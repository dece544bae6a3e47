"""Chromium without a window, for tests of pages; they are skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOME = Path(__file__).resolve().parents[2] / "build" / "browser"
"""Place of the browser that `make test` downloads."""


def system_chromium() -> str | None:
    """Return the path of the installed Chromium; `CLUSIM_CHROMIUM` names another one."""
    return os.environ.get("CLUSIM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def chromium() -> Iterator[Any]:
    """Yield a browser of playwright's: the system's Chromium or the downloaded one."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = system_chromium() or shutil.which(HOME / "chromium")
    if path is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def watched(browser: Any, **options: Any) -> tuple[Any, list[str]]:
    """Return a new page and the list in which its errors and warnings will be."""
    page = browser.new_page(**options)
    troubles: list[str] = []

    def note(message: Any) -> None:
        if message.type in ("error", "warning"):
            troubles.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("requestfailed", lambda request: troubles.append(f"failed: {request.url}"))
    return page, troubles


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true on a page.

    Playwright's own `wait_for_function` evaluates text on the page, which a page that forbids that does not do.
    """
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")
