"""Notebooks in JupyterLab, in a real browser: they fit, and their widgets move."""

import hashlib
import re
import shutil
from importlib.util import find_spec

import pytest
from jupyter_browser import (
    CHROMIUM,
    chromium_page,
    jupyter_lab,
    open_notebook,
    run_all_cells,
)

from notebooks import build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(not find_spec("playwright"), reason="Playwright is missing"),
]
NOTEBOOKS = sorted(path.name for path in build.FOLDER.glob("*.ipynb"))
# Notebooks whose first widget is moved.
MOVED = ["01_suffix_decay.ipynb", "09_scheduler.ipynb"]
WIDGET = ".jp-OutputArea .widget-vbox"
BYTES = "async i => [...new Uint8Array(await (await fetch(i.src)).arrayBuffer())]"
# Cells with something that sticks out to the right, by the start of its text.
TOO_WIDE = """() => [...document.querySelectorAll(
    '.jp-RenderedMarkdown, .jp-OutputArea-output')]
    .filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => box.textContent.slice(0, 80))"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    for name in NOTEBOOKS:
        shutil.copy(build.FOLDER / name, folder)
    with jupyter_lab(folder) as address:
        yield address


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_opens_without_an_error_and_fits_the_page(lab, name):
    with chromium_page() as page:
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        open_notebook(page, lab, name)
        for cell in page.locator(".jp-Notebook .jp-Cell").all():
            cell.scroll_into_view_if_needed()
        assert page.evaluate(TOO_WIDE) == []
        assert page.locator(".jp-Notebook .jp-mod-error, .MathJax_Error").count() == 0
        assert errors == []


@pytest.mark.parametrize("name", MOVED)
def test_moving_each_control_changes_figure_and_numbers(lab, name):
    with chromium_page() as page:
        open_notebook(page, lab, name)
        run_all_cells(page)
        widget = page.locator(WIDGET).first
        shown = seen(widget)
        for handle in widget.get_by_role("slider").all():
            at_an_end = handle.get_attribute("aria-valuenow") == "0.0"
            step, back = ("ArrowRight", "ArrowLeft")[:: 1 if at_an_end else -1]
            handle.press(step)
            moved = changed(widget, shown)
            handle.press(back)
            assert changed(widget, moved) == shown  # the choice alone decides
        for button in widget.locator("button:not(.mod-active)").all():
            button.click()
            shown = changed(widget, shown)


def seen(widget):
    """Return what a reader sees below the controls: the picture and its numbers."""
    numbers = widget.locator("pre").filter(has_text=re.compile(r"\d"))
    numbers.wait_for()
    picture = bytes(widget.locator("img").evaluate(BYTES))
    assert picture.startswith(b"\x89PNG")
    return hashlib.sha256(picture).hexdigest(), numbers.text_content()


def changed(widget, before):
    """Wait until the numbers are others than before; the picture must be, too."""
    widget.locator("pre").filter(has_not_text=before[1]).wait_for()
    after = seen(widget)
    assert after[0] != before[0] and after[1] != before[1]
    return after
