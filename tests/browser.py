"""Debian's chromium for tests of pages; without it they are skipped, or fail if it is needed."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1000",
)


def open_browser(profile: Path) -> Iterator[Any]:
    """A driver that logs console messages and requests."""
    missing = [path for path in (BROWSER, DRIVER) if shutil.which(path) is None]
    if missing:
        reason = f"{' and '.join(missing)} not found: install Debian's chromium, chromium-driver"
        (pytest.fail if os.environ.get("HUSHBIT_NEED_BROWSER") == "1" else pytest.skip)(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(DRIVER))
    made.set_page_load_timeout(60)
    made.set_script_timeout(60)
    yield made
    made.quit()


def size(driver: Any, width: int, height: int, mobile: bool = False) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def scheme(driver: Any, name: str) -> None:
    """Set the theme of the system: "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": name}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
