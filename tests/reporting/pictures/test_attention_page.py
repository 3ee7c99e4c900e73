"""The page of attention: it holds what the view holds, loads nothing, runs nobody's text, and works in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import says

from headcount.errors import BadRun, NotFound
from headcount.reporting.pictures import attention_page
from headcount.reporting.pictures.attention_page import AttentionKind, AttentionView, HeadAttention, Token, as_bytes

EVIL = "</script><img src=x onerror=alert(1)>&\"'<!--style-->"


def weights(queries: int, keys: int, seed: int, causal: bool = False) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(scale=2, size=(queries, keys))
    logits[np.triu_indices(queries, 1, keys)] += -np.inf if causal else 0
    made = np.exp(logits)
    return as_bytes(made / made.sum(1, keepdims=True))


def side(count: int, name: str = "w") -> tuple[Token, ...]:
    return (Token("[CLS]", False, True), *(Token(f"{name}{n}", n % 3 == 2) for n in range(count - 1)))


def view(count: int = 6, evil: str = "", kinds: int = 3) -> AttentionView:
    """An encoder-decoder of two layers with three heads; one decoder head is gone, one is masked."""
    source, target = side(count), side(count - 2, "z")
    if evil:
        source = (Token(evil), *source[1:])
    made = []
    for number, (kind, queries, keys) in enumerate(
        (("encoder", source, source), ("decoder", target, target), ("cross", target, source))
    ):
        rows = []
        for layer in range(2):
            site = f"{'encoder' if kind == 'encoder' else 'decoder'}.{layer}" + {
                "decoder": ".self",
                "cross": ".cross",
            }.get(kind, "")
            shape = (len(queries), len(keys))
            heads = [
                HeadAttention(
                    f"{site}:{n}",
                    weights(*shape, 100 * number + 10 * layer + n, kind == "decoder"),
                    np.linspace(0.2, 3, len(keys)) if kind != "cross" else None,
                    n == 1 and layer == 0,
                )
                for n in range(3)
                if (kind, layer, n) != ("decoder", 1, 1)
            ]
            rows.append((site, tuple(heads)))
        made.append(AttentionKind(kind, queries, keys, tuple(rows), kind == "decoder"))
    return AttentionView(evil or "Translator", tuple(made[:kinds]), "encoder.0:1", (evil,) if evil else ())


def data_of(page: str) -> dict[str, Any]:
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


@pytest.mark.parametrize("count", [6, 60])
def test_the_page_holds_the_weights_of_every_head(count: int) -> None:
    whole = view(count)
    page = whole.html()
    data = data_of(page)
    assert [kind["title"] for kind in data["kinds"]] == [
        "Encoder self-attention",
        "Decoder self-attention",
        "Cross-attention",
    ]
    heads = [head for kind in data["kinds"] for row in kind["rows"] for head in row["heads"]]
    assert [head["unit"] for head in heads] == list(whole.heads)
    for head in heads:
        text = re.search(rf'<script type="text/plain" id="w{head["blob"]}">([^<]*)</script>', page)
        assert text is not None
        content = base64.b64decode(text.group(1))
        content = zlib.decompress(content) if head["packed"] else content
        assert content == whole._head(head["unit"]).weights.tobytes()
        assert head["packed"] == (count > 6)
        if head["packed"]:
            thumb = np.frombuffer(base64.b64decode(head["thumb"]), np.uint8)
            assert thumb.size == attention_page.THUMB**2
            assert thumb.max() == whole._head(head["unit"]).weights.max()


def test_pooling_keeps_the_largest_of_each_block() -> None:
    content = np.arange(70 * 30, dtype=np.uint32).reshape(70, 30)
    pooled = attention_page._pooled(content)
    assert pooled.shape == (28, 28)
    starts = np.arange(28) * 70 // 28, np.arange(28) * 30 // 28
    for n, m in ((0, 0), (5, 27), (27, 27)):
        rows = slice(starts[0][n], None if n == 27 else starts[0][n + 1])
        columns = slice(starts[1][m], None if m == 27 else starts[1][m + 1])
        assert pooled[n, m] == content[rows, columns].max()


def test_nothing_is_loaded_and_only_the_own_script_runs() -> None:
    page = view().html()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy.group(1).startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.group(1)
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy.group(1)
    assert not re.search(r"(src|href)=", re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL))
    assert "<!--" not in page


def test_hostile_texts_are_data() -> None:
    page = view(evil=EVIL).html()
    assert "<img" not in page
    assert data_of(page)["kinds"][0]["queries"][0][0] == EVIL
    assert "&lt;img" in page  # in the title and the note
    notebook = view(evil=EVIL)._repr_html_()
    assert notebook.startswith("<iframe srcdoc=")
    assert notebook.count("<") == 1 + notebook.count("</iframe>")
    assert 'sandbox="allow-scripts allow-downloads"' in notebook


def test_a_page_too_large_for_a_notebook_or_a_browser_says_what_to_do(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(attention_page, "INLINE", 1000)
    assert ".save(" in view()._repr_html_()
    assert "iframe" not in view()._repr_html_()
    monkeypatch.setattr(attention_page, "LARGEST", 1000)
    with says(BadRun, about="name fewer heads"):
        view().save(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_not_there() -> None:
    for ask in (view().weights, view().value_weights, view().tokens):
        with says(NotFound, about="not a head of this view"):
            ask("9:9")
    with says(NotFound, about="values of decoder.0.cross:0"):
        view().value_weights("decoder.0.cross:0")
    with says(BadRun, about="is a folder"):
        view().save(Path("."))
    assert repr(view()).startswith("<AttentionView of Translator: 17 heads on 6 tokens and 4 tokens: encoder.0:0")


# -- in a browser ------------------------------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None, reason="needs chromium and chromedriver"
)


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    pytest.importorskip("selenium")
    import screenshots

    with screenshots.browser(1240, 1000) as window:
        yield window


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return view(60).save(tmp_path_factory.mktemp("look") / "page.html")


@pytest.fixture
def window(opened: Any, made: Path) -> Any:
    import screenshots

    screenshots.resize(opened, 1240, 1000)
    screenshots.dress(opened, "light")
    opened.get_log("browser")
    screenshots.open_page(opened, made)
    return opened


def find(window: Any, selector: str) -> Any:
    return window.find_element("css selector", selector)


def complaints(window: Any) -> list[str]:
    return [entry["message"] for entry in window.get_log("browser")]


def wait(window: Any, script: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(window, 20).until(lambda _: window.execute_script(f"return {script}"))


@needs_browser
def test_it_opens_without_a_complaint_and_a_token_says_where_it_looks(window: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    assert window.execute_script("return performance.getEntriesByType('resource').length") == 0
    find(window, '[data-place="1 2"]').click()
    wait(window, "document.getElementById('one-title').textContent === 'Head encoder.1:2'")
    find(window, "#queries-4").click()
    told = find(window, "#told").text
    row = view(60).weights("encoder.1:2")[4]
    best = int(row.argmax())
    texts = [token.text for token in side(60)]
    assert told.startswith(f"{texts[4]} looks at {texts[best]} {round(100 * row[best])} %")
    find(window, '[data-place="1 2"]').send_keys(Keys.ARROW_UP)
    wait(window, "document.getElementById('one-title').textContent === 'Head encoder.0:2'")
    assert window.execute_script("return document.activeElement.dataset.place") == "0 2"
    find(window, "#matrix").send_keys(Keys.ESCAPE, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert "w0 → w0: " in find(window, "#told").text
    assert complaints(window) == []


@needs_browser
def test_a_notebook_shows_it_in_a_frame_of_its_own(window: Any, tmp_path: Path) -> None:
    page = tmp_path / "notebook.html"
    page.write_text(
        f"<!doctype html><html data-ready=yes><body>{view(60)._repr_html_()}</body></html>", encoding="utf-8"
    )
    window.get(page.as_uri())
    window.switch_to.frame(0)
    try:
        wait(window, "document.documentElement.dataset.ready === 'yes'")
        assert find(window, "#one-title").text == "Head encoder.0:0"
    finally:
        window.switch_to.default_content()
    assert complaints(window) == []


@needs_browser
def test_values_tabs_and_the_causal_mask(window: Any) -> None:
    find(window, "#matrix").send_keys("\ue015")  # down: the second token is asked
    before = find(window, "#told").text
    window.execute_script("document.querySelector('input[value=values]').click()")
    wait(window, f"document.getElementById('told').textContent !== {json.dumps(before)}")
    row = view(60).value_weights("encoder.0:0")[1]
    share = row[int(row.argmax())]
    assert f"{round(100 * share)} %" in find(window, "#told").text
    tabs = window.find_elements("css selector", "#tabs button")
    tabs[1].click()
    wait(window, "document.getElementById('one-title').textContent === 'Head decoder.0.self:0'")
    assert "masked: later tokens" in find(window, "#legend").text
    tabs[2].click()
    wait(window, "document.getElementById('one-title').textContent === 'Head decoder.0.cross:0'")
    assert not find(window, "input[value=values]").is_enabled()
    assert [one.text for one in window.find_elements("css selector", ".block h3")] == [
        "What the decoder reads",
        "The source",
    ]
    assert complaints(window) == []


@needs_browser
def test_pictures_are_saved_as_svg_and_png(window: Any, tmp_path: Path) -> None:
    from xml.etree import ElementTree

    window.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    for what in ("one", "all"):
        for kind in ("svg", "png"):
            window.execute_script(f"document.querySelector('[data-save={what}][data-as={kind}]').click()")
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(window, 20).until(lambda _: len([p for p in tmp_path.iterdir() if p.suffix in (".svg", ".png")]) == 4)
    svg = ElementTree.parse(tmp_path / "attention-encoder.0-0.svg").getroot()
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "[CLS]" in texts
    assert (tmp_path / "attention-encoder.0-0.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(ElementTree.parse(tmp_path / "attention-Encoder-self-attention.svg").getroot())) > 6
    assert complaints(window) == []


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_scrolling_sideways_and_hostile_texts_do_nothing(
    opened: Any, tmp_path: Path, scheme: str
) -> None:
    import screenshots

    page = view(evil=EVIL).save(tmp_path / "page.html")
    opened.get_log("browser")
    screenshots.dress(opened, scheme)
    screenshots.resize(opened, 390, 844)
    screenshots.open_page(opened, page)
    assert opened.execute_script("return document.documentElement.scrollWidth") == 390
    assert opened.find_elements("css selector", "img") == []
    find(opened, "#queries-0").click()
    assert EVIL in find(opened, "#told").text
    assert complaints(opened) == []
