"""A report in a real browser: it opens from the disk without a complaint, and map, slider, charts and buttons work."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import run_folders

from headcount.reporting import page as report_page
from reporting.test_page import hostile

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None, reason="needs chromium and chromedriver"
)
pytest.importorskip("selenium")
import screenshots  # noqa: E402  (it is in tools/, and needs selenium)


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with screenshots.browser(1240, 1000) as window:
        yield window


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A page about a classifier and a translator, and the documents of the classifier."""
    root = tmp_path_factory.mktemp("browser")
    documents = run_folders.everything(root / "runs")
    scores = run_folders.scores_document(run_folders.scores(run_folders.TRANSLATOR, seed=4))
    run_folders.folder(root / "runs" / "other", "score", {"scores": scores}, model="translator", weights="w2")
    return report_page.report([root / "runs"], root / "page.html"), documents


@pytest.fixture
def window(opened, made) -> Any:
    """The page, freshly opened in a wide light window."""
    screenshots.resize(opened, 1240, 1000)
    screenshots.dress(opened, "light")
    opened.get_log("browser")  # what came before
    screenshots.open_page(opened, made[0])
    return opened


def find(window: Any, selector: str) -> Any:
    return window.find_element("css selector", selector)


def every(window: Any, selector: str) -> list[Any]:
    return list(window.find_elements("css selector", selector))


def cell(window: Any, unit: str) -> Any:
    return find(window, f'#m1 .map .cell[aria-label="{unit}"]')


def facts(window: Any) -> dict[str, str]:
    pairs = every(window, "#m1 [data-facts] > div")
    return {pair.find_element("tag name", "dt").text: pair.find_element("tag name", "dd").text for pair in pairs}


def click(window: Any, element: Any) -> None:
    window.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    element.click()


def unfold(window: Any) -> None:
    """Unfold all sections, by the button of each menu, and wait until their charts are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    for button in every(window, ".menu [data-unfold]"):
        window.execute_script("arguments[0].click()", button)
    waiting = "return document.querySelectorAll('.chart:not(:has(svg.marks))').length === 0"
    WebDriverWait(window, 30).until(lambda _: window.execute_script(waiting))


def gone(window: Any) -> set[str]:
    return {one.get_attribute("aria-label") for one in every(window, "#m1 .map .cell.gone")}


def complaints(window: Any) -> list[str]:
    return [entry["message"] for entry in window.get_log("browser")]


def test_it_opens_from_the_disk_without_a_complaint_and_asks_for_nothing_else(window) -> None:
    assert complaints(window) == []
    entries = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert window.execute_script(entries) == []
    seen = every(window, "details[open] .chart, .curve .chart")  # what is folded has no width yet, and is drawn later
    assert 0 < len(seen) == len(every(window, ".chart svg.marks")) < len(every(window, ".chart"))
    unfold(window)
    assert complaints(window) == []
    drawn = every(window, ".chart svg.marks")
    assert len(drawn) == len(every(window, ".chart")) > 6
    assert all(one.size["width"] > 300 and one.size["height"] > 100 for one in drawn)
    assert len(every(window, "#m2 .map svg")) == 3


def test_a_head_chosen_with_the_mouse_shows_its_numbers_and_is_marked_in_the_charts(window, made) -> None:
    row = made[1]["ablation"]["ablations"][1]
    assert row["closed"] == "0:1"
    click(window, cell(window, "0:1"))
    shown = facts(window)
    site = made[1]["scores"]["sites"]["0"]
    assert find(window, "#m1 [data-name]").text == "0:1"
    assert shown["Score by taylor, ± s.e."] == f"{site['score'][1]:.3f} ± {site['stderr'][1]:.3f}"
    assert shown["Without it"] == f"−{-100 * row['difference']:.1f} [−14.4, −10.2] points"
    assert shown["p, and corrected by Holm"] == f"{row['p']:.2g} → {row['p_holm']:.2g}"
    assert shown["Place in the order of removal"] == f"{made[1]['prune']['order'].index('0:1') + 1} of 11"
    assert [one.get_attribute("aria-label") for one in every(window, "#m1 .cell.picked")] == ["0:1"]
    seen = """
        const ink = `:is([fill="var(--ink)"], [stroke="var(--ink)"])`;
        return ["ranking", "effects", "transfer"].map((name) => [...document.querySelectorAll(
          `#m1-${name}-chart path[opacity="1"]${ink}`)].map((one) => one.__data__.datum.unit));
    """
    assert window.execute_script(seen) == [[], ["0:1"], []]
    unfold(window)  # a chart that is drawn later knows what was chosen before
    assert window.execute_script(seen) == [["0:1"]] * 3
    marked = [one.get_attribute("data-row") for one in every(window, "#m1 tr[aria-current]")]
    assert marked == ["0:1"]
    click(window, cell(window, "2:3"))
    assert [one.get_attribute("data-row") for one in every(window, "#m1 tr[aria-current]")] == ["2:3"]
    assert complaints(window) == []


def test_a_head_can_be_chosen_with_the_keyboard(window) -> None:
    from selenium.webdriver.common.keys import Keys

    click(window, cell(window, "0:1"))
    for key, unit in (
        (Keys.ARROW_RIGHT, "0:2"),
        (Keys.ARROW_DOWN, "1:2"),
        (Keys.ARROW_RIGHT, "1:2"),  # the row ends here: the model is ragged
        (Keys.ARROW_DOWN, "2:2"),
        (Keys.END, "2:3"),
        (Keys.ARROW_UP, "1:2"),
        (Keys.HOME, "1:0"),
    ):
        window.switch_to.active_element.send_keys(key)
        assert find(window, "#m1 [data-name]").text == unit
        assert window.switch_to.active_element.get_attribute("aria-label") == unit
    assert len(every(window, '#m1 .map .cell[tabindex="0"]')) == 1  # one stop of the tabulator


def test_a_unit_can_be_chosen_in_a_chart_too(window) -> None:
    from selenium.webdriver import ActionChains

    brick = find(window, "#m1-effects-chart svg path[fill='var(--warn)']")  # the one that hurts beyond chance
    window.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", brick)
    ActionChains(window).move_to_element(brick).click().perform()
    assert find(window, "#m1 [data-name]").text == "0:1"
    under = "return getComputedStyle(document.querySelector('#m1-effects-chart svg').parentNode).cursor"
    assert window.execute_script(under) == "pointer"
    ActionChains(window).move_to_element_with_offset(find(window, "#m1-effects-chart"), 0, -115).perform()
    assert window.execute_script(under) != "pointer"


def test_the_slider_shows_which_heads_are_gone_and_what_is_left(window, made) -> None:
    slider = find(window, "#m1 [data-slider]")
    order = [str(unit) for unit in made[1]["order"]]
    assert gone(window) == set(order[:4])  # as chosen
    assert find(window, "#m1 [data-removed]").text == "4 of 11 gone, as chosen:"
    for place, (removed, value) in enumerate(((0, "0.900"), (3, "0.894"), (4, "0.894"), (6, "0.876"), (11, "0.820"))):
        move = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        window.execute_script(move, slider, place)
        assert gone(window) == set(order[:removed])
        assert find(window, "#m1 [data-value]").text.startswith(value)
        assert find(window, "#m1 [data-removed]").text.startswith(f"{removed} of 11 gone")


def test_the_slider_moves_with_the_keyboard(window, made) -> None:
    from selenium.webdriver.common.keys import Keys

    find(window, "#m1 [data-slider]").send_keys(Keys.ARROW_RIGHT)
    assert gone(window) == {str(unit) for unit in made[1]["order"][:6]}
    assert not every(window, "#m2 .map .cell.gone")  # the other model is left alone


def test_the_map_can_be_coloured_by_another_measure(window) -> None:
    from selenium.webdriver.support.ui import Select

    fill = "return getComputedStyle(arguments[0].querySelector('rect')).fill"
    before = window.execute_script(fill, cell(window, "0:1"))
    choice = Select(find(window, "#m1 [data-view]"))
    assert [option.text for option in choice.options] == ["Score: taylor", "Difference: ablation"]
    choice.select_by_visible_text("Difference: ablation")
    assert {one.get_attribute("aria-label") for one in every(window, "#m1 .map .cell.marked")} == {"0:1", "0:2"}
    assert "loses" in cell(window, "0:1").get_attribute("class")
    assert "gains" in cell(window, "0:2").get_attribute("class")
    assert window.execute_script(fill, cell(window, "0:1")) != before


def test_light_and_dark_have_their_own_colours_in_page_and_charts(window) -> None:
    script = """
        const of = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
        return [of("body", "backgroundColor"), of("body", "color"), of("#m1 .chart text", "fill"),
                of("#m1 .map .cell.picked rect", "stroke"), of("#m1-effects-chart path[fill='var(--warn)']", "fill")];
    """
    light = window.execute_script(script)
    screenshots.dress(window, "dark")
    dark = window.execute_script(script)
    assert all(one != other for one, other in zip(light, dark, strict=True)), (light, dark)
    assert dark[0] == "rgb(18, 22, 28)"


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_needs_no_scrolling_sideways(window, width) -> None:
    screenshots.resize(window, width, 844)
    window.refresh()
    screenshots.open_page(window, Path(window.current_url.removeprefix("file://")))
    assert window.execute_script("return document.documentElement.scrollWidth") == width
    wide = """
        return [...document.querySelectorAll("body *")].filter((one) => {
          const box = one.getBoundingClientRect();
          return box.width > 0 && box.right > innerWidth + 1 && !one.closest(".scroll, svg, pre");
        }).map((one) => one.className || one.tagName);
    """
    assert window.execute_script(wide) == []
    click(window, cell(window, "1:1"))
    assert find(window, "#m1 [data-name]").text == "1:1"
    slider = find(window, "#m1 .slider").rect  # it stays in sight while the map is
    top = window.execute_script("return scrollY")
    assert top <= slider["y"] <= top + 844


@pytest.mark.parametrize("kind", ["latex", "csv", "markdown"])
@pytest.mark.parametrize("how", ["clipboard", "old way"])
def test_a_table_is_copied_as_it_is(window, made, kind, how) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    if how == "old way":  # where the clipboard is not to be had
        window.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true})")
    else:
        window.execute_cdp_cmd(
            "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        )
    unfold(window)
    click(window, find(window, f'[data-table="m1-one-head-table"][data-copy="{kind}"]'))
    WebDriverWait(window, 10).until(lambda here: find(here, ".toast").text.startswith("Copied as"))
    window.execute_script("document.body.insertAdjacentHTML('beforeend', '<textarea id=paste></textarea>')")
    click(window, find(window, "#paste"))
    find(window, "#paste").send_keys(Keys.CONTROL, "v")
    text = find(window, "#paste").get_property("value")
    rows = made[1]["all-but-one"]["attentions"]
    if kind == "csv":
        head, *cells = csv.reader(io.StringIO(text))
        assert head[0] == "attention"
        assert [row[0] for row in cells] == [row["site"] for row in rows]
        assert [float(row[3]) for row in cells] == pytest.approx([100 * row["difference"] for row in rows])
    elif kind == "markdown":
        assert text.splitlines()[2] == "| 0 | 0 | 0.880 | −3.00 | −5.10 | −0.90 | 0.01 | 0.03 |"
    else:
        assert r"0 & 0 & 0.880 & $-$3.00 & $-$5.10 & $-$0.90 & 0.01 & 0.03 \\" in text


def test_cells_of_a_wide_map_stay_large_enough_for_a_finger(opened, tmp_path) -> None:
    sites: run_folders.Sites = {str(n): ("head", "decoder", 32) for n in range(3)}
    run_folders.folder(tmp_path / "run", "score", {"scores": run_folders.scores_document(run_folders.scores(sites))})
    page = report_page.report([tmp_path / "run"], tmp_path / "page.html")
    screenshots.resize(opened, 390, 844)
    screenshots.open_page(opened, page)
    assert opened.execute_script("return document.documentElement.scrollWidth") == 390
    cells = every(opened, "#m1 .map .cell rect")
    assert len(cells) == 96
    assert min(one.rect["width"] for one in cells) >= 21.9
    click(opened, cell(opened, "1:31"))  # its map scrolls there
    assert find(opened, "#m1 [data-name]").text == "1:31"
    screenshots.resize(opened, 1240, 1000)  # beside nothing, it has room for all of them
    assert (
        opened.execute_script("const one = document.querySelector('.wide'); return one.scrollWidth - one.clientWidth")
        == 0
    )


def test_a_command_is_copied_and_scrolls_in_its_own_frame(window) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    window.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    screenshots.resize(window, 390, 844)
    line = find(window, "#m1 .command pre")
    assert line.size["height"] < 60  # one line
    click(window, find(window, "#m1 .command button"))
    # the browser copies in its own time, and the page says so afterwards
    WebDriverWait(window, 10).until(lambda here: find(here, ".toast").text == "Copied the command")
    read = "const done = arguments[0]; navigator.clipboard.readText().then(done, done)"
    assert window.execute_async_script(read) == find(window, "#m1 .command code").get_attribute("textContent")


def test_hostile_names_do_nothing_in_a_browser(opened, tmp_path) -> None:
    page = report_page.report([hostile(tmp_path)], tmp_path / "page.html", title="</title><script>alert(1)</script>")
    opened.get_log("browser")
    screenshots.open_page(opened, page)  # an open dialog would make this fail
    for one in every(opened, ".map .cell")[:3]:
        click(opened, one)
    assert complaints(opened) == []
    assert every(opened, "img") == []
    assert len(every(opened, "script")) == 3
    assert "alert(1)" in opened.title
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_it_prints_in_light_colours_also_from_a_dark_screen(window) -> None:
    screenshots.dress(window, "dark")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    try:
        assert window.execute_script("return getComputedStyle(document.body).color") == "rgb(27, 36, 48)"
        for gone in (".tools", ".hint", ".command button", ".menu"):
            assert not find(window, gone).is_displayed(), gone
        after = "return getComputedStyle(document.querySelector('#m1-units > summary'), '::after').content"
        assert "unfold it before printing" in window.execute_script(after)  # what is folded is named
        assert find(window, "#m1-units > summary").is_displayed()
        style = "const one = getComputedStyle(document.querySelector(arguments[0])); return [one.breakAfter, one.breakInside]"
        assert window.execute_script(style, "#m1-effects .words") == ["avoid", "avoid"]
        assert window.execute_script(style, "#m1-one-head figcaption")[0] == "avoid"
        assert window.execute_script(style, "#m1-effects .words p")[1] == "avoid"
    finally:
        window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


def test_the_menu_stays_and_leads_to_what_is_folded(window) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    menu = find(window, "#m1 .menu")
    names = [link.text for link in menu.find_elements("css selector", "a")]
    assert names == ["Answer", "Map", "What it came to", "Which units matter", "How to get it again"]
    top = "return arguments[0].getBoundingClientRect().top"
    window.execute_script("document.querySelector('#m1-again').scrollIntoView({behavior: 'instant'})")
    assert window.execute_script(top, menu) == pytest.approx(0, abs=1)
    below = "return document.querySelector('#m1-again').getBoundingClientRect().top - arguments[0].getBoundingClientRect().bottom"
    assert window.execute_script(below, menu) >= 0  # it covers no heading
    closed = "return !document.querySelector('#m1-transfer').open"
    assert window.execute_script(closed)
    window.execute_script("location.hash = '#m1-transfer-table'")
    WebDriverWait(window, 10).until(lambda here: not here.execute_script(closed))
    assert find(window, "#m1-transfer-table").is_displayed()


def test_the_menu_is_a_button_on_a_phone(window) -> None:
    screenshots.resize(window, 390, 844)
    button, link = find(window, "#m1 .menu [data-menu]"), find(window, "#m1 .menu a[href='#m1-again']")
    assert button.is_displayed()
    assert not link.is_displayed()
    click(window, button)
    assert link.is_displayed()
    assert button.get_attribute("aria-expanded") == "true"
    link.click()
    assert not link.is_displayed()
    assert button.get_attribute("aria-expanded") == "false"
    screenshots.resize(window, 1240, 1000)


@pytest.mark.parametrize("width", [1240, 900, 390])
def test_no_tile_stands_alone_in_a_row(opened, tmp_path, width) -> None:
    document = run_folders.structured({"0": 8, "1.mlp": 64})
    run_folders.folder(tmp_path / "run", "prune", {"prune": document})
    page = report_page.report([tmp_path / "run"], tmp_path / "page.html")
    screenshots.resize(opened, width, 1000)
    screenshots.open_page(opened, page)
    boxes = [(round(tile.rect["y"]), tile.rect["width"]) for tile in every(opened, ".tile")]
    assert len(boxes) >= 7
    rows = {y: [width for row, width in boxes if row == y] for y, _ in boxes}
    whole = find(opened, ".tiles").rect["width"]
    assert all(sum(widths) == pytest.approx(whole, abs=3) for widths in rows.values())
    assert opened.execute_script("return document.documentElement.scrollWidth") == width
    screenshots.resize(opened, 1240, 1000)


# -- roles ------------------------------------------------------------------------------------------------------------------

TOKENS = (
    "[CLS]",
    "</script><img src=x onerror=alert(1)>",
    "שלום",
    "antidisestablishmentarianism",
    "🙂",
    "cat",
    "[SEP]",
)


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A page about the roles of 6 x 12 heads with a curve, and the document of the roles."""
    root, sites = tmp_path_factory.mktemp("cast"), run_folders.MINILM
    document = run_folders.roles(tokens=TOKENS)
    order = run_folders.scores(sites).order()
    run_folders.folder(root / "runs" / "roles", "roles", {"roles": document})
    curves = {
        "curves": run_folders.curves(order, [0, 24, 48, 72]),
        "scores-taylor": run_folders.scores(sites).to_json(),
    }
    run_folders.folder(root / "runs" / "curve", "curve", curves)
    return report_page.report([root / "runs"], root / "page.html"), document | {"order": order}


@pytest.fixture
def stage(opened, cast) -> Any:
    screenshots.resize(opened, 1240, 1000)
    screenshots.dress(opened, "light")
    opened.get_log("browser")
    screenshots.open_page(opened, cast[0])
    return opened


def test_roles_are_colours_and_letters_of_the_map_and_go_with_the_slider(stage, cast) -> None:
    from selenium.webdriver.support.ui import Select

    Select(find(stage, "#m1 [data-view]")).select_by_visible_text("Role: what each head looks at")
    letters = """
        return [...document.querySelectorAll("#m1 .map .cell")].map((one) =>
          [one.getAttribute("aria-label"), one.querySelector("text").textContent]);
    """
    marks = {"positional": "P", "syntactic": "S", "alignment": "A", "rare": "R", "induction": "I", "copying": "C"}
    marks |= {"local": "L", "punctuation": "Pu", "sink": "Si", "none": ""}
    assert dict(stage.execute_script(letters)) == {h["unit"]: marks[h["main"]] for h in cast[1]["heads"]}
    mains = [head["main"] for head in cast[1]["heads"]]
    legend = [one.text.split("\n")[-1] for one in every(stage, "#m1 [data-keys] .key")]
    assert f"positional {mains.count('positional')}" in legend
    assert f"no role {mains.count('none')}" in legend
    move = "arguments[0].value = 1; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
    stage.execute_script(move, find(stage, "#m1 [data-slider]"))
    assert gone(stage) == {str(unit) for unit in cast[1]["order"][:24]}
    Select(find(stage, "#m1 [data-view]")).select_by_visible_text("Score: taylor")
    assert {text for _, text in stage.execute_script(letters)} == {""}
    assert not every(stage, "#m1 [data-keys] .key")
    assert complaints(stage) == []


def test_the_card_of_a_head_draws_its_attention_and_says_it_in_words(stage, cast) -> None:
    from selenium.webdriver.common.keys import Keys

    head = cast[1]["heads"][6]
    click(stage, cell(stage, head["unit"]))
    assert [one.text.partition(" (its")[0] for one in every(stage, "#m1 .head-card ul li")] == [
        head["roles"][0]["text"]
    ]
    assert len(every(stage, "#m1 .attention")) == 2
    text = cast[1]["examples"][0]["attention"][head["unit"]]
    weights = [int(text[n : n + 2], 16) / 255 for n in range(0, len(text), 2)]
    rows = [weights[n : n + len(TOKENS)] for n in range(0, len(weights), len(TOKENS))]
    drawing = find(stage, "#m1 .attention")
    lines = "return [...arguments[0].querySelectorAll('.from')].map((g) => g.children.length)"
    assert stage.execute_script(lines, drawing) == [sum(weight >= 0.05 for weight in row) for row in rows]
    words = "return [...document.querySelector('#m1 .head-card ol').children].map((one) => one.textContent)"
    largest = [max(range(len(row)), key=row.__getitem__) for row in rows]
    assert stage.execute_script(words) == [
        f"{token} → {TOKENS[to]} {int(100 * row[to] + 0.5)} %"
        for token, to, row in zip(TOKENS, largest, rows, strict=True)
    ]
    tokens = """
        return [...arguments[0].querySelectorAll(".query")].map((one) =>
          [one.querySelector("title").textContent, one.querySelector("text").textContent]);
    """
    shown = stage.execute_script(tokens, drawing)
    assert [whole for whole, _ in shown] == list(TOKENS)
    assert all(len(short) <= 14 for _, short in shown)
    assert shown[3][1].endswith("…")

    first = drawing.find_element("css selector", ".query")
    stage.execute_script("arguments[0].focus()", first)
    stage.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    own = "return [...arguments[0].querySelectorAll('.from')].map((g) => getComputedStyle(g).visibility)"
    assert stage.execute_script(own, drawing) == ["hidden", "visible", *["hidden"] * 5]
    assert len(every(stage, "#m1 .attention .query[tabindex='0']")) == 2  # one stop for each drawing
    stage.execute_script("document.activeElement.blur()")
    assert set(stage.execute_script(own, drawing)) == {"visible"}
    assert every(stage, "img") == []
    assert complaints(stage) == []


@pytest.mark.parametrize("width", [320, 390])
def test_the_card_fits_a_phone_and_no_token_leaves_its_drawing(stage, width) -> None:
    screenshots.resize(stage, width, 844)
    stage.refresh()
    screenshots.open_page(stage, Path(stage.current_url.removeprefix("file://")))
    assert stage.execute_script("return document.documentElement.scrollWidth") == width
    out = """
        return [...document.querySelectorAll(".attention")].flatMap((frame) => {
          const room = frame.getBoundingClientRect();
          return [...frame.querySelectorAll("text")].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.left < room.left - 1 || box.right > room.right + 1;
          }).map((text) => text.textContent);
        });
    """
    assert stage.execute_script(out) == []
