"""The sound view: keyed texts, files, the microphone and playback."""

import math
import shutil
from functools import partial

import numpy as np
import pytest

from tests.browser.conftest import CLOSE_GUIDE, FLAGS, NAMES, poll, settle
from tests.web.views.test_sound import tones

pytestmark = pytest.mark.browser


def wait_for_text(page, text):
    script = "text => document.querySelector('.transcript')?.textContent.trim() === text"
    page.wait_for_function(script, arg=text)


def test_the_first_thing_on_screen_is_a_finished_example(page, open_view, explorer):
    open_view("sound")
    wait_for_text(page, "CQ DE REGARD")
    answer = explorer.answer("sound", {"model": "morse"})
    shown = page.locator(".timeline text[data-value]")
    values = [float(x.get_attribute("data-value")) for x in shown.all()]
    assert values == [x["seconds"] for x in answer["emissions"]]
    value = page.get_attribute("[aria-label=Text] p[data-value]", "data-value")
    assert float(value) == answer["confidence"]


def test_a_typed_text_is_keyed_and_a_link_restores_it(page, open_view):
    open_view("sound")
    page.fill("input[type=text]", "sos 73")
    wait_for_text(page, "SOS 73")
    page.reload()
    wait_for_text(page, "SOS 73")
    page.fill("input[type=text]", "größe")
    page.wait_for_selector("[role=alert]")
    assert "text: needs capitals" in page.inner_text("[role=alert]")


def test_the_cursor_moves_by_key_and_shows_what_was_written_by_then(page, open_view):
    open_view("sound", message="SOS", at=1.0)
    slider = page.get_by_role("slider", name="Position in the recording")
    assert float(slider.get_attribute("aria-valuenow")) == 1.0
    assert slider.get_attribute("aria-valuetext") == "1.00 seconds, written so far: S"
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('at=1.1')")
    page.keyboard.press("End")
    page.wait_for_selector("strong:text-is('SOS')")


def test_playback_moves_the_cursor_and_hides_the_future_of_the_map(page, open_view):
    open_view("sound", message="SOS")
    page.get_by_role("button", name="Play").click()
    page.wait_for_selector("button:has-text('Pause')")
    slider = page.get_by_role("slider", name="Position in the recording")
    handle = slider.element_handle()
    moved = "x => { const t = Number(x.getAttribute('aria-valuenow')); return t > 0.1 && t < 2; }"
    page.wait_for_function(moved, arg=handle)
    assert page.locator("svg[aria-roledescription='heat map'] > rect").count() == 1  # covers it
    page.wait_for_selector("button:has-text('Play')")  # it ends by itself


def test_a_head_is_chosen_from_the_small_maps(page, open_view, explorer):
    open_view("sound", message="SOS", at=1.5)
    page.get_by_role("button", name="encoder.2.self, head 1").click()
    page.wait_for_function("() => location.hash.includes('head=1')")
    settle(page)
    assert page.locator("select").nth(1).input_value() == "encoder.2.self"
    from regard.web.explorer.explorer import unpack

    body = {"model": "morse", "message": "SOS", "site": "encoder.2.self", "head": 1}
    answer = explorer.answer("sound", body)
    row = math.floor(1.5 / answer["seconds"] * answer["outputs"])
    largest = float(unpack(answer["map"])[row].max())
    shown = page.locator("section:has(h2:text('Attention map')) .readout")
    assert float(shown.get_attribute("data-value")) == largest


def test_a_chosen_recording_is_transcribed_and_a_bad_one_is_one_sentence(page, open_view, tmp_path):
    import soundfile

    open_view("sound")
    soundfile.write(tmp_path / "sea.flac", tones("SEA SOS", 22050), 22050)
    page.set_input_files("input[type=file]", tmp_path / "sea.flac")
    wait_for_text(page, "SEA SOS")
    assert "resampled from 22050 to 8000 Hz" in page.inner_text("[aria-label=Text]")
    bad = {"name": "text.wav", "mimeType": "audio/wav", "buffer": b"no sound at all"}
    page.set_input_files("input[type=file]", bad)
    page.wait_for_selector("[role=alert]")
    assert "sound: needs to be WAV, FLAC or OGG" in page.inner_text("[role=alert]")


@pytest.fixture
def microphone_page(browser, server, tmp_path):
    """A page of a browser whose microphone plays SOS SOS."""
    import soundfile

    file = tmp_path / "microphone.wav"
    wave = np.concatenate([tones("SOS SOS", 48000), np.zeros(48000)])
    soundfile.write(file, wave, 48000, "PCM_16")
    flags = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    flags += [*FLAGS, f"--use-file-for-fake-audio-capture={file}"]
    path = next(filter(None, map(shutil.which, NAMES)))
    own = browser.browser_type.launch(executable_path=path, args=flags)
    context = own.new_context(base_url=server)
    context.add_init_script(CLOSE_GUIDE)
    page = context.new_page()
    page.wait_for_function = partial(poll, page)
    yield page
    own.close()


def test_a_recording_is_written_while_it_is_heard_and_then_analysed(microphone_page):
    page = microphone_page
    page.goto("/#/sound")
    settle(page)
    page.get_by_role("button", name="● Record").click()
    page.wait_for_selector("text=Recording,")
    heard = "() => document.querySelector('.transcript')?.textContent.includes('SOS')"
    page.wait_for_function(heard, timeout=20_000)
    page.get_by_role("button", name="■ Stop").click()
    page.wait_for_function("() => location.hash.includes('file=')")
    page.wait_for_selector(".timeline")
    settle(page)
    assert "SOS" in page.inner_text(".transcript")


def test_a_refused_microphone_is_one_sentence(page, open_view):
    open_view("sound")
    page.evaluate("""() => {
        const refuse = () => Promise.reject(new DOMException("no", "NotAllowedError"));
        navigator.mediaDevices.getUserMedia = refuse;
    }""")
    page.get_by_role("button", name="● Record").click()
    page.wait_for_selector("[role=alert]")
    assert page.inner_text("[role=alert]") == (
        "The microphone was refused; allow it for this page, or choose a file."
    )
    assert page.get_by_role("button", name="● Record").is_enabled()


def test_a_model_and_a_text_of_other_views_are_not_taken_over(page, open_view):
    open_view("text", model="phrases", text="€12.50", to="de")
    for view, selector in (("Sound", ".timeline"), ("Image", ".verdict")):
        page.get_by_role("link", name=view).click()
        page.wait_for_selector(selector)
        assert page.locator("[role=alert]").count() == 0


def test_a_page_of_the_command_line_plays(page, explorer, tmp_path):
    from regard.web.explorer.view_file import write_view

    params = {"model": "morse", "message": "SOS", "wpm": "30"}
    file = write_view(explorer, "sound", params, tmp_path / "sound.html")
    page.goto(file.as_uri())
    wait_for_text(page, "SOS")
    page.wait_for_selector("button:has-text('Play'):enabled")


def test_the_view_fits_a_phone(new_page):
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto("/#/sound")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
