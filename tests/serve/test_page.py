"""The page in a real browser, at desktop and phone widths."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Running, running
from serving_fixtures import picture
from siglum.data.source import write_source

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the page is tested with Chromium (apt-get install chromium)")
SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
WIDTH = (
    "image => image.naturalWidth || new Promise(done => image.addEventListener('load', () => done(image.naturalWidth)))"
)
"""The width of a picture, once it is there."""
WORDS = "a big red star left of a blue ring"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield one
        one.close()


@pytest.fixture(scope="module")
def served(world_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    run = Path(shutil.copytree(world_run, tmp_path_factory.mktemp("page") / "run"))
    write_source(run, "world", items=480, seed=0)
    with running(run) as one:
        yield one


def opened(browser: Any, served: Running, size: str, **settings: Any) -> tuple[Any, list[str]]:
    """Return the page, and what its console complains of."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, has_touch=size == "phone", reduced_motion="reduce", **settings
    )
    page, complaints = context.new_page(), list[str]()
    page.set_default_timeout(60_000)
    page.on("console", lambda told: complaints.append(told.text) if told.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url) if not own(asked.url, served) else None)
    page.goto(served.address)
    page.wait_for_selector(".card")
    return page, complaints


def own(url: str, served: Running) -> bool:
    return url.startswith((served.address, "blob:", "data:"))


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, browser: Any, served: Running) -> Iterator[Any]:
    one, complaints = opened(browser, served, request.param)
    yield one
    # An id that is there already is refused, which a browser counts among errors.
    assert [one for one in complaints if "409 (Conflict)" not in one] == []
    wide = one.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "the page scrolls sideways"
    one.context.close()


def search(page: Any, words: str) -> None:
    with page.expect_response(lambda answer: answer.url.endswith("/search")):
        page.fill("#text", words)
        page.press("#text", "Enter")
    page.wait_for_selector("#results:not([aria-busy])")


def shown(page: Any, grid: str = "#grid") -> list[str]:
    found: list[str] = page.locator(f"{grid} > li:visible").evaluate_all("all => all.map(one => one.dataset.id)")
    return found


def test_words_find_what_the_service_finds(page: Any, served: Running) -> None:
    assert "items" in page.text_content("#status")
    search(page, WORDS)
    assert shown(page) == [hit["id"] for hit in served.search(text=WORDS, k=24, kinds=["image", "both"])]
    first = page.locator("#grid > li").first
    assert re.fullmatch(r"1\s+\d+ % alike", first.locator(".rank").text_content().strip())
    assert first.locator(".face img").evaluate(WIDTH) > 0
    page.locator("#kinds label", has_text="Texts").click()
    page.wait_for_selector("#grid blockquote")
    assert any(name.endswith("-t") for name in shown(page))


def test_a_dropped_picture_and_words_are_one_question(page: Any, served: Running, picture: bytes) -> None:
    drop = """async ([bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "mine.png", {type: "image/png"}));
        dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    page.evaluate(drop, [list(picture)])
    page.wait_for_selector("#status:has-text('result')")
    assert page.text_content("#asked-name") == "mine.png"
    alone = shown(page)
    search(page, "but blue")
    assert page.is_visible("#asked-image") and shown(page) != alone
    page.click("#asked-drop")
    page.wait_for_selector("#asked", state="hidden")


def test_a_picture_is_pasted_or_chosen(page: Any, picture: bytes) -> None:
    page.set_input_files("#file", {"name": "chosen.png", "mimeType": "image/png", "buffer": picture})
    page.wait_for_selector("#asked-name:has-text('chosen.png')")
    page.click("#asked-drop")
    paste = """([bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "pasted.png", {type: "image/png"}));
        dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
    }"""
    page.evaluate(paste, [list(picture)])
    page.wait_for_selector("#asked-name:has-text('pasted.png')")


def test_more_like_one_and_one_but_changed(page: Any) -> None:
    search(page, WORDS)
    first = shown(page)[0]
    page.locator("#grid > li .like").first.click()
    page.wait_for_selector("#asked:visible")
    page.wait_for_selector(f"#grid > li[data-id='{first}']", state="detached")
    assert shown(page) and first not in shown(page)
    page.go_back()
    page.wait_for_selector("#asked", state="hidden")
    page.wait_for_selector(f"#grid > li[data-id='{first}']")
    page.wait_for_selector("#results:not([aria-busy])")
    assert page.input_value("#text") == WORDS
    page.locator("#grid > li .change").first.click()
    edit = page.locator("#grid > li .edit input").first
    edit.fill("but green")
    edit.press("Enter")
    page.wait_for_selector("#asked:visible")
    assert page.input_value("#text") == "but green"


def test_the_beam_shows_where_a_target_lives_and_dies(page: Any) -> None:
    search(page, WORDS)
    page.locator("#grid > li .follow").nth(3).click()
    page.wait_for_selector("#verdict.lives:has-text('survives every level')")
    assert page.locator("#columns .level").count() >= 2
    assert page.locator("#columns .prefix.target").count() == page.locator("#columns .level").count()
    assert page.locator("#columns path.mine").count() > 0
    page.locator("#beam-beam").focus()
    page.press("#beam-beam", "Home")
    page.wait_for_selector("#verdict.falls:has-text('falls at')")
    assert page.text_content("#beam-beam-out") == "1" == page.text_content("#beam-out")
    assert page.locator("#columns .prefix.target.pruned").count() > 0
    page.press("#beam-beam", "End")
    page.wait_for_selector("#verdict.lives")
    omega = page.text_content("#beam-omega-out")
    page.press("#beam-omega", "ArrowLeft")
    assert page.text_content("#beam-omega-out") != omega
    page.press("#beam-title", "Escape")
    page.wait_for_selector("#beam-view", state="hidden")


def test_dense_search_and_scores_stand_beside(page: Any) -> None:
    search(page, WORDS)
    page.locator("#dense-label").click()
    page.wait_for_selector("#beside:visible")
    missed = set(shown(page, "#beside-grid")) - set(shown(page))
    assert page.locator("#beside-grid .mark:visible").count() == len(missed)
    page.locator("#parts-label").click()
    page.wait_for_selector("#grid .scores:visible")
    assert "decoder" in page.locator("#grid .scores").first.text_content()


def test_an_item_comes_and_goes(page: Any, served: Running, picture: bytes) -> None:
    name = f"mine {page.viewport_size['width']}"
    page.click("#add-open")
    page.fill("#add-id", name)
    page.fill("#add-text", "an orange zebra")
    page.set_input_files("#add-file", {"name": "a.png", "mimeType": "image/png", "buffer": picture})
    page.press("#add-id", "Enter")
    page.wait_for_selector(f"#status:has-text('Added {name}')")
    page.click("#add-open")
    page.fill("#add-id", name)
    page.fill("#add-text", "again")
    page.press("#add-id", "Enter")
    page.wait_for_selector("#add-error:has-text('is in the index already')")
    page.click("#add-cancel")
    page.set_input_files("#file", {"name": "q.png", "mimeType": "image/png", "buffer": picture})
    page.wait_for_selector(f"#grid > li[data-id='{name}']")
    card = page.locator(f"#grid > li[data-id='{name}']")
    card.hover()
    card.locator(".remove").click()
    card.locator(".remove").click()
    page.wait_for_selector(f"#status:has-text('Removed {name}')")
    assert name not in shown(page)


def test_everything_can_be_done_from_the_keyboard(browser: Any, served: Running) -> None:
    page, complaints = opened(browser, served, "desktop")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.value"
            )
        )
    assert {"text", "file", "go", "add-open", "dense", "parts", "image", "like", "change"} <= reached
    page.focus("#text")
    page.keyboard.type(WORDS)
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:has-text('result')")
    page.locator("#grid .follow").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#columns .level")
    assert page.evaluate("document.activeElement.id") == "beam-title"
    assert complaints == []
    page.context.close()


def test_a_key_is_asked_for_once(browser: Any, run_copy: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123456789abcdef")
    write_source(run_copy, "world", items=480, seed=0)
    with running(run_copy, api_key_file=tmp_path / "key") as locked:
        context = browser.new_context()
        page = context.new_page()
        page.goto(locked.address)
        page.fill("#key-value", "0123456789abcdef")
        page.press("#key-value", "Enter")
        page.wait_for_selector(".card .face img")
        assert page.locator(".card .face img").first.evaluate(WIDTH) > 0  # fetched with the key
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_no_serious_fault(browser: Any, served: Running, size: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page, _ = opened(browser, served, size, color_scheme=scheme)
    faults: list[str] = []

    def look(where: str) -> None:
        for one in Axe().run(page).response["violations"]:
            if one["impact"] in ("serious", "critical"):
                faults.append(f"{where}: {one['id']} {[node['target'] for node in one['nodes']][:3]}")

    look("at first")
    search(page, WORDS)
    page.locator("#dense-label").click()
    page.locator("#knobs summary").click()
    page.locator("#grid .change").first.click()
    page.wait_for_selector("#beside:visible")
    look("results")
    page.locator("#grid .follow").first.click()
    page.wait_for_selector("#columns .level")
    look("beam")
    page.press("#beam-title", "Escape")
    page.click("#add-open")
    look("add")
    assert faults == []
    page.context.close()


def test_a_run_of_plain_vectors_opens_too(browser: Any, run_copy: Path) -> None:
    with running(run_copy) as plain:
        retriever = plain.service.served.retriever
        retriever._encoder = None
        page, complaints = opened(browser, plain, "desktop")
        assert page.is_disabled("#text") and page.is_hidden("#add-open") and page.is_hidden("#pick")
        assert "no encoder" in page.get_attribute("#text", "placeholder")
        assert len(shown(page)) == 24 and complaints == []
        page.context.close()
