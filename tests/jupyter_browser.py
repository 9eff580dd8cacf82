"""A notebook in JupyterLab in a real Chromium, driven as a reader would drive it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from notebooks import build

# Names under which systems install it.
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
# No look-ups of its own: a test must not need a network.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Milliseconds; a start on a busy machine takes its time.
PATIENCE = 180_000


@contextmanager
def jupyter_lab(folder: Path) -> Iterator[str]:
    """Serve a folder of notebooks on a free local port; yield the address."""
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=localhost"]
    command += ["--port=0", "--IdentityProvider.token=", "--ServerApp.password="]
    command += ["--allow-root", f"--ServerApp.root_dir={folder}"]
    environment = os.environ | build.kernel_environment()
    for name in ("CONFIG", "DATA", "RUNTIME"):  # nothing of the user's own
        environment[f"JUPYTER_{name}_DIR"] = str(folder / ".jupyter" / name.lower())
    environment["JUPYTERLAB_SETTINGS_DIR"] = str(folder / ".jupyter" / "settings")
    environment["JUPYTERLAB_WORKSPACES_DIR"] = str(folder / ".jupyter" / "workspaces")
    server = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    try:
        yield _address(server)
    finally:
        server.terminate()
        server.wait(timeout=60)


def _address(server: subprocess.Popen[str]) -> str:
    """Read the server's log until it says where it listens."""
    assert server.stderr is not None
    log = []
    for line in server.stderr:
        log.append(line)
        if found := re.search(r"http://localhost:\d+", line):
            return found.group()
    raise RuntimeError("JupyterLab did not start:\n" + "".join(log[-20:]))


@contextmanager
def chromium_page() -> Iterator[Any]:
    """Yield an empty page of a fresh headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE)
        yield page
        browser.close()


def open_notebook(page: Any, address: str, notebook: str) -> None:
    """Open a notebook alone on the page, and wait for its kernel."""
    page.goto(f"{address}/doc/tree/{notebook}?reset")
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    page.get_by_text("| Idle").wait_for()  # cells sent before that are lost


def run_all_cells(page: Any) -> None:
    """Choose Run All Cells from the menu; it does not wait for them."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
