"""The page in a real browser: Chromium without a window, through Selenium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import chromium, needs_chromium
from toys import ragged_federation

import fedspray
from fedspray.report.html import write_report

pytestmark = [pytest.mark.slow, needs_chromium]

CHARTS = (
    "curve-overall",
    "curve-minority",
    "curve-loss",
    "client-bars",
    "label-counts",
    "homophily",
    "proxy-plane",
    "proxy-similarity",
    "bytes",
    "seconds",
)


class Page:
    """A page that is open, with what it said and asked for meanwhile."""

    def __init__(self, driver: Any, file: Path) -> None:
        self.driver = driver
        self.get_log_since_start()
        driver.get(file.as_uri())
        self.wait("return document.documentElement.dataset.ready", "charts")

    def get_log_since_start(self) -> None:
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, value: Any) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 60).until(lambda driver: driver.execute_script(script) == value)

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("file:", "data:", "blob:"))]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        browser.get("about:blank")
        yield browser


@pytest.fixture(scope="module")
def file(run_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report([run_folders[name] for name in ("local", "fedavg", "fedspray")], path)
    return path


@pytest.fixture
def page(driver: Any, file: Path) -> Iterator[Page]:
    opened = Page(driver, file)
    yield opened
    assert opened.complaints() == []
    assert opened.requests() == []


def test_everything_is_drawn(page: Page) -> None:
    for chart in CHARTS:
        marks = page.count(f"#{chart} .main-svg .trace, #{chart} .main-svg .hm image, #{chart} .heatmaplayer image")
        assert marks > 0, chart
    assert page.count("#overview tbody tr:not(.gap)") == 4  # all clients, and three
    assert page.count("#curves .chart-legend .line") == 3
    filled = "const t = document.getElementById('overview'); return t.offsetWidth / t.parentElement.offsetWidth"
    assert page.run(filled) > 0.95
    heights = "return [...document.querySelectorAll('#headline tbody tr')].map((r) => r.getBoundingClientRect().height)"
    assert all(height % 1 == 0 for height in page.run(heights))  # whole pixels, or lines of sticky cells break


def test_names_that_look_like_numbers_are_names(driver: Any, tmp_path: Path) -> None:
    graph = ragged_federation().clients[1].graph
    federation = fedspray.Federation.from_graphs(dict.fromkeys(("1001", "7", "2021-05-01"), graph))
    fedspray.run(federation, "fedspray", rounds=2, hidden=8, out=tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    for chart in ("client-bars", "label-counts", "homophily", "proxy-similarity"):
        axis = page.run(
            "const a = document.getElementById(arguments[0])._fullLayout.xaxis; return [a.type, a._categories]", chart
        )
        assert axis == ["category", ["1001", "7", "2021-05-01"]], chart
    assert page.complaints() == []


def test_no_button_sends_anything_away(page: Page) -> None:
    titles = page.run("return [...document.querySelectorAll('.modebar-btn')].map((b) => b.dataset.title)")
    assert set(titles) == {"Zoom", "Pan", "Reset axes", "Download plot as a PNG"}


def test_methods_can_be_hidden_everywhere(page: Page) -> None:
    lines = page.count("#curve-minority .scatterlayer .trace")
    page.click("#methods .chip:nth-of-type(2)")
    assert page.run("return document.querySelectorAll('#methods .chip')[1].getAttribute('aria-pressed')") == "false"
    assert page.count("#curve-minority .scatterlayer .trace") == lines * 2 / 3
    assert page.count("#client-bars .barlayer .trace") == 2
    assert page.count("#overview thead button") == 1
    page.click("#methods .chip:nth-of-type(2)")
    assert page.count("#curve-minority .scatterlayer .trace") == lines


def test_choices_change_what_is_shown(page: Page) -> None:
    read = "return document.querySelector(arguments[0]).textContent"
    minority = page.run(read, "#overview")
    page.click('input[name="choice-group"][value="majority"]')
    assert page.run(read, "#overview") != minority
    page.click("#overview thead th:last-child button")
    name = page.run(read, "#overview thead th:last-child")
    assert page.run(read, "#detail-title").startswith(name)
    curve = "return document.getElementById('curve-overall').data[1].y[4]"
    test = page.run(curve)
    page.click('input[name="choice-part"][value="train"]')
    assert page.run(curve) != test
    page.click('input[name="choice-what"][value="proxies"]')
    assert "proxies" in page.run(read, "#similarity-caption")


def test_a_zoom_moves_all_curves(page: Page) -> None:
    page.run("return Plotly.relayout('curve-loss', {'xaxis.range[0]': 2, 'xaxis.range[1]': 4}).then(() => null)")
    page.wait("return document.getElementById('curve-overall').layout.xaxis.range.join()", "2,4")
    page.run("return Plotly.relayout('curve-loss', {'xaxis.autorange': true}).then(() => null)")
    page.wait("return document.getElementById('curve-overall').layout.xaxis.autorange", True)


def test_light_and_dark(page: Page) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.getElementById('bytes').layout.font.color"
    before = page.run(background), page.run(ink)
    page.click("#theme")
    after = page.run(background), page.run(ink)
    assert before[0] != after[0]
    assert before[1] != after[1]
    page.click("#theme")
    assert (page.run(background), page.run(ink)) == before


def test_the_system_may_ask_for_dark(driver: Any, file: Path) -> None:
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    page = Page(driver, file)
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 24)"
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert page.complaints() == []


def test_keys_move_through_the_card(page: Page) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    first = page.driver.find_element(By.CSS_SELECTOR, "#overview td[tabindex='0']")
    page.run("arguments[0].focus()", first)
    first.send_keys(Keys.ARROW_DOWN)
    label = page.run("return document.activeElement.getAttribute('aria-label')")
    assert label.startswith("client_0")
    assert page.run("return document.getElementById('tip').hidden") is False
    assert page.run("return document.getElementById('tip').textContent").startswith(label.split(",")[0])
    assert page.count("#overview td[tabindex='0']") == 1


def test_a_phone_scrolls_down_only(driver: Any, file: Path) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    page = Page(driver, file)
    assert page.run("return document.documentElement.scrollWidth") <= 390
    deciding = "document.querySelector('#headline thead th:nth-child(2)')"
    assert "against local" in page.run(f"return {deciding}.textContent")
    assert page.run(f"return {deciding}.getBoundingClientRect().right") <= 390
    assert page.run("return document.querySelector('#results .scroll').hasAttribute('data-more')")
    assert page.count("#results .more-columns") == 1
    page.run("const box = document.querySelector('#results .scroll'); box.scrollLeft = box.scrollWidth")
    page.wait("return document.querySelectorAll('#results .more-columns').length", 0)
    assert page.complaints() == []
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_one_run_has_a_page_too(driver: Any, run_folders: dict[str, Path], tmp_path: Path) -> None:
    write_report([run_folders["fedavg"]], tmp_path / "report.html")
    page = Page(driver, tmp_path / "report.html")
    assert page.count("#overview tbody tr:not(.gap)") == 4
    assert page.count("#proxies") == 0
    assert page.run("return document.getElementById('methods').hidden") is True
    assert (page.complaints(), page.requests()) == ([], [])


def test_runs_between_organisations_have_a_page(driver: Any, run_folders: dict[str, Path], tmp_path: Path) -> None:
    for name in ("local", "fedspray"):
        shutil.copytree(run_folders[name], tmp_path / name)
        for kept in [*(tmp_path / name).glob("seed-*/nodes.json"), tmp_path / name / "federation.json"]:
            kept.unlink()
    write_report([tmp_path / "local", tmp_path / "fedspray"], tmp_path / "report.html")
    page = Page(driver, tmp_path / "report.html")
    assert page.count("#overview tbody tr:not(.gap)") == 4
    assert page.count("#overview thead th") == 3  # both methods
    assert page.count("#detail") == 0
    assert (page.complaints(), page.requests()) == ([], [])
