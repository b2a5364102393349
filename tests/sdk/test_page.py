"""The built-in page, as a person sees it. Screenshots are kept under the build's folder."""

import json
import os
from pathlib import Path

import pytest
from browser import ENTER, Browser
from system import ROOT, eventually

SHOTS = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "screenshots"

ANSWER = "#log .turn:not(.mine)"


@pytest.fixture
def browser(server):
    """Closed before the server's ledger is looked at: it keeps connections open."""
    browser = Browser()
    yield browser
    browser.close()


def opened(browser, server):
    browser.go(server.url + "/")
    browser.until(lambda: browser.text("#state") == "serving", "the page knows the server")


def say(browser, text):
    browser.type("#prompt", text + ENTER)


def finished(browser):
    return browser.run("return !document.querySelector('[aria-busy]') && document.querySelectorAll('#log .turn').length > 0")


def test_the_page_shows_the_system_and_chats(browser, server, client, model):
    opened(browser, server)
    assert model in browser.text("#models")
    assert browser.run("return document.querySelectorAll('#workers tr').length") == 2
    assert browser.text("#workers").count("ready") == 2
    browser.run("document.querySelector('#temperature').value = 0; document.querySelector('#longest').value = 40")
    question = "What is the capital of France?"
    say(browser, question)
    browser.until(lambda: finished(browser), "an answer")
    answer = browser.text(ANSWER + " .text")
    messages = [{"role": "user", "content": question}]
    told = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=40)
    assert answer and answer == told.choices[0].message.content
    assert "token" in browser.text(ANSWER + " .note")
    # The conversation goes on, and begins like the first turn did: the cache has it.
    say(browser, "And of Italy? One word.")
    browser.until(lambda: finished(browser) and browser.text(ANSWER + " .note").count("token") == 2, "a second answer")
    browser.until(lambda: browser.text("#first").endswith("s"), "a time to first token")
    browser.until(lambda: browser.text("#hits") not in ("\u2013", "0 %"), "a cache hit")
    browser.screenshot(SHOTS / "page.png")
    assert not [line for line in browser.log() if "favicon" not in line], "the console is quiet: nothing was blocked or failed"


def test_an_answer_can_be_stopped(browser, server):
    opened(browser, server)
    browser.run("document.querySelector('#longest').value = 4000")
    say(browser, "Write a long story about a lighthouse, with many chapters.")
    browser.until(lambda: browser.text(ANSWER + " .text").count(" ") > 3, "some words")
    browser.until(lambda: browser.text("#streams") == "1", "the live stream is counted")
    browser.click("#stop")
    browser.until(lambda: finished(browser), "the end")
    assert "stopped" in browser.text(ANSWER + " .note")
    # The ledger, which the fixture checks, says that the worker has stopped too.
    assert browser.visible("#send") and not browser.visible("#stop")


def test_errors_are_said_plainly_and_the_message_is_kept(browser, server):
    opened(browser, server)
    browser.run("document.querySelector('#temperature').value = 3")
    say(browser, "Hello")
    browser.until(lambda: finished(browser), "a refusal")
    fault = browser.text("#log .fault")
    assert "temperature" in fault and "(400)" in fault, fault
    assert browser.run("return document.querySelector('#prompt').value") == "Hello"
    browser.log()


def test_what_a_model_says_is_never_markup(browser, start_server, tmp_path):
    nasty = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>&amp;"
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"model": "<b>m</b>", "scripts": [{"steps": [{"text": nasty}]}]}))
    server = start_server("--engine", "scripted", "--script", str(script), "--workers", "1")
    opened(browser, server)
    assert "<b>m</b>" in browser.text("#models")
    say(browser, nasty)
    browser.until(lambda: finished(browser), "the answer")
    assert browser.text(ANSWER + " .text") == nasty
    assert browser.text("#log .mine .text") == nasty
    assert browser.run("return document.querySelectorAll('#log img, #log script, #models b').length") == 0
    assert browser.run("return document.title") == "dynamo"
    assert not browser.log()


def test_a_key_is_asked_for_and_a_lost_server_is_said(browser, start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# one\nsk-page-0123456789abc\n")
    server = start_server("--engine", "mock", "--workers", "1", "--api-keys-file", str(keys))
    browser.go(server.url + "/")
    browser.until(lambda: browser.visible("#key"), "a key is asked for")
    assert browser.run("return document.querySelector('#send').disabled")
    browser.type("#key", "sk-wrong-0123456789abc" + ENTER)
    browser.until(lambda: "not valid" in browser.text("#notice"), "a wrong key is refused")
    browser.type("#key", "sk-page-0123456789abc" + ENTER)
    browser.until(lambda: browser.text("#state") == "serving", "the right key is taken")
    assert not browser.visible("#key")
    say(browser, "Hello")
    browser.until(lambda: finished(browser), "an answer")
    assert browser.text(ANSWER + " .text") and not browser.text("#log .fault")
    assert server.get("/v1/models").status == 401
    server.stop()
    assert "sk-page" not in server.output
    browser.until(lambda: "does not answer" in browser.text("#notice"), "the loss is said")
    browser.log()


def test_dark_and_narrow(server, model):
    browser = Browser(dark=True, size=(500, 900))
    try:
        opened(browser, server)
        browser.run("document.querySelector('#longest').value = 40")
        say(browser, "Say hello.")
        browser.until(lambda: finished(browser), "an answer")
        browser.screenshot(SHOTS / "page-dark-narrow.png")
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert sum(int(part) for part in ground[4:-1].split(",")) < 150, ground
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    finally:
        browser.close()


def test_a_hidden_page_asks_nothing(browser, server):
    opened(browser, server)
    count = "return performance.getEntriesByName(location.origin + '/status.json').length"
    hide = "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"
    browser.run(hide, True)
    # One request may have been on its way.
    eventually(lambda: False, 1.5)
    before = browser.run(count)
    eventually(lambda: False, 2.5)
    assert browser.run(count) == before
    browser.run(hide, False)
    browser.until(lambda: browser.run(count) > before, "it asks again")
