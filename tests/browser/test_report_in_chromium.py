"""The report in a real browser: no errors, figures are drawn, sorting and filtering work, by keyboard too.

make test-browser installs what it needs. With SCREENSHOTS=folder the pictures of the documents are made as well. Tests marked
`smoke` are those of .ci/run.
"""

import os
import shutil
from pathlib import Path

import pytest
from cadre.report.__main__ import main
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser")
        # Chromium's own sandbox needs what a container doesn't give; the page is ours.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    files = sorted(str(each.relative_to(ROOT)) for each in (ROOT / "bench" / "results").glob("*/*.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main([*files, "-o", str(path), "--skip-unknown"]) == 0
    return path.as_uri()


@pytest.fixture
def opened(browser, address):
    """Opens the page; whatever it asks for or complains about is a failure at the end."""
    faults, pages = [], []

    def open_page(viewport=WIDE, scheme="light"):
        page = browser.new_page(viewport=viewport, color_scheme=scheme)
        page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
        page.goto(address)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not faults


@pytest.mark.smoke
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_figures_are_drawn_and_nothing_sticks_out(opened, viewport, scheme):
    page = opened(viewport, scheme)
    for kind in ("roofline", "rivals", "rows", "skew", "layer", "schedule"):
        figure = page.locator(f"#{kind} figure").first
        box = figure.bounding_box()
        assert box["width"] > 300 and box["height"] > 150, kind
    assert page.locator("svg.plot circle").count() > 500 and page.locator("svg.plot path.tiles").count() >= 8
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_every_point_lies_inside_its_plot(opened):
    page = opened()
    outside = page.evaluate(
        """[...document.querySelectorAll("svg.plot")].flatMap((svg) => [...svg.querySelectorAll("circle")].filter((c) =>
           c.cx.baseVal.value < 60 || c.cx.baseVal.value > 680 || c.cy.baseVal.value < 0 || c.cy.baseVal.value > 360)).length"""
    )
    assert outside == 0


def test_text_has_contrast_in_both_themes(opened):
    for scheme in ("light", "dark"):
        page = opened(scheme=scheme)
        ratio = page.evaluate(
            """(() => { const lum = (c) => { const v = c.match(/[0-9.]+/g).slice(0, 3).map((x) => { x /= 255;
                 return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
               const [a, b] = [getComputedStyle(document.querySelector(".source")).color,
                 getComputedStyle(document.querySelector("figure")).backgroundColor].map(lum);
               return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); })()"""
        )
        assert ratio >= 4.5, scheme


def _column(page, number):
    return page.locator(f"#cases tbody tr:not([hidden]) td:nth-child({number})").all_inner_texts()


def test_columns_sort_both_ways_by_mouse_and_keyboard(opened):
    page = opened()
    page.select_option("select[data-column=device]", label="NVIDIA H200")
    titles = page.locator("#cases th").all_inner_texts()
    milliseconds = titles.index("ms") + 1
    head = page.locator(f"#cases th:nth-child({milliseconds})")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    keys = page.evaluate(
        f"""[...document.querySelectorAll("#cases tbody tr:not([hidden])")].map((row) =>
            Number(row.cells[{milliseconds - 1}].dataset.key ?? row.cells[{milliseconds - 1}].textContent))"""
    )
    assert keys == sorted(keys) and keys[0] < keys[-1]
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    shapes = titles.index("shape") + 1
    page.locator(f"#cases th:nth-child({shapes}) button").focus()
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "none"
    found = _column(page, shapes)
    assert found == sorted(found, key=str.lower) and found[0] != found[-1]


@pytest.mark.smoke
def test_filters_leave_what_fits_and_say_how_many(opened):
    page = opened()
    every = len(_column(page, 1))
    page.fill("#search", "qwen3-30b forward")
    page.select_option("select[data-column=dtype]", label="bf16")
    left = page.locator("#cases tbody tr:not([hidden])").all_inner_texts()
    assert 0 < len(left) < every and all("qwen3-30b" in row and "forward" in row and "bf16" in row for row in left)
    assert page.inner_text("#count") == f"{len(left)} of {every} rows"
    page.fill("#search", "no such case")
    assert page.inner_text("#count") == f"0 of {every} rows"
    page.fill("#search", "")
    page.select_option("select[data-column=dtype]", value="")
    assert page.inner_text("#count") == f"{every} of {every} rows"


def test_the_theme_is_a_button(opened):
    page = opened()
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("Tab")  # the link to the table
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.keyboard.press("Enter")
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_a_screen_reader_finds_names(opened):
    page = opened()
    assert page.get_by_role("navigation", name="Sections").count() == 1
    assert page.get_by_role("search", name="Filter the table").count() == 1
    assert page.get_by_role("img", name="Roofline of NVIDIA H200").count() == 1
    assert page.get_by_label("Contains").count() == 1 and page.get_by_label("machine").count() == 1
    assert page.get_by_role("columnheader", name="kernel").count() == 1
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select, svg")].filter((e) =>
           !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length)).length"""
    )
    assert unnamed == 0


def test_screenshots_of_the_documents(opened, tmp_path):
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    for name, viewport, scheme in (
        ("report_wide", {"width": 1200, "height": 760}, "light"),
        ("report_dark", {"width": 1200, "height": 760}, "dark"),
        ("report_phone", {"width": 390, "height": 760}, "light"),
    ):
        page = opened(viewport, scheme)
        page.screenshot(path=folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 10_000
    page = opened()
    page.locator("#schedule figure").first.screenshot(path=folder / "report_schedule.png")
