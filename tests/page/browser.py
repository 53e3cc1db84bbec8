"""Drives the page in Chromium, as an operator would. `main.rs` starts the server and runs one case of this file.

Usage: browser.py CASE, with the addresses, the token and the server's process id in TOLLGATE_ADMIN, TOLLGATE_PROXY,
TOLLGATE_TOKEN and TOLLGATE_PID. TOLLGATE_SCREENSHOTS names a folder for pictures. A case that fails says why and ends
with 1. After every case: nothing left the page's origin, and no content security policy was violated.
"""

import http.server
import json
import os
import re
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

ADMIN = os.environ["TOLLGATE_ADMIN"]
PROXY = os.environ["TOLLGATE_PROXY"]
TOKEN = os.environ["TOLLGATE_TOKEN"]
PATIENCE = 20
HOSTILE = "<script>window.owned=1</script><img src=x onerror='window.owned=1'>"


def browser(width=1280, height=900):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    # Containers have no user namespaces for the sandbox, and a small /dev/shm.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     "--disable-background-networking", f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    resize(driver, width, height)
    return driver


def resize(driver, width, height):
    # A window of a browser has a smallest width; the emulated screen of a telephone has none.
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})


def eventually(what, look, patience=PATIENCE):
    """Looks until there is something true; what a look raises counts as false."""
    end = time.monotonic() + patience
    seen = None
    while True:
        try:
            seen = look()
            if seen:
                return seen
        except Exception as error:  # The page replaces nodes while it is looked at.
            seen = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience} s: {what}; last seen: {seen!r}")
        time.sleep(0.05)


def observe_for(seconds):
    """Nothing may happen in this time."""
    time.sleep(seconds)


def send(key, path="/", more=()):
    """A request to the proxy: its status and the id of the request."""
    request = urllib.request.Request(PROXY + path, headers={"x-api-key": key, **dict(more)})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers.get("x-request-id")
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("x-request-id")


def refused(key, more=()):
    """Sends until it is refused; the id of the refused request."""
    for _ in range(20):
        status, request_id = send(key, more=more)
        if status == 429:
            return request_id
    raise AssertionError("the limit refuses nothing")


class Page:
    def __init__(self, driver):
        self.driver = driver
        self.everything = []
        self.expected_violations = 0

    def requests(self):
        """The addresses that were requested since the last look."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        self.everything += found
        return found

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.find(selector).text

    def shows(self, selector, wanted, patience=PATIENCE):
        eventually(f"{wanted!r} in {selector}", lambda: wanted in self.text(selector), patience)

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def open(self, token=TOKEN):
        self.driver.get(ADMIN)
        self.shows("#problem", "wants a token")
        if token:
            self.give(token)
        return self

    def give(self, token):
        self.find("#token").send_keys(token, Keys.ENTER)

    def opened(self):
        self.open().shows("#facts", "generation")
        return self

    def row(self, table, wanted):
        """The row of a table that has a text."""
        rows = [row for row in self.all(f"{table} tbody tr") if wanted in row.text]
        return rows[0] if rows else None

    def act(self, row_of, wanted, action):
        """Presses a button in a row, which a refresh may move in the meantime."""
        def press():
            row = self.row(row_of, wanted)
            if row is None:
                return False
            button = [button for button in row.find_elements(By.TAG_NAME, "button") if button.text == action][0]
            button.click()
            return True
        eventually(f"{action} in the row of {wanted!r}", press)

    def screenshot(self, name):
        folder = os.environ.get("TOLLGATE_SCREENSHOTS")
        if folder:
            self.driver.save_screenshot(os.path.join(folder, f"{name}.png"))

    def hash_of(self, key):
        """Looks a key up as the client sends it; its hash."""
        Select(self.find("#key-limit")).select_by_value("writes")
        part = self.find("#key-part-0")
        part.clear()
        part.send_keys(key, Keys.ENTER)
        return eventually("the hash of the key", lambda: re.search(r"\b[0-9a-f]{32}\b", self.text("#key-answer")).group())


# ---- The cases

def loads_and_updates_by_itself(page):
    page.opened()
    page.shows("#limits-table", "writes")
    page.shows("#routes-table", "site")
    page.shows("#store", "embedded")
    page.shows("#origins-table", "up")
    before = page.script("window.marked = true; return performance.getEntriesByType('navigation').length")
    request_id = refused("updates")
    page.shows("#refusals-table", request_id)
    page.shows("#reading", "limited")
    page.shows("#top-table", "Override")
    assert page.script("return window.marked") and before == 1, "the page was loaded again"
    chart = page.find("#chart")
    drawn = eventually("bars of refusals", lambda: page.find("#chart path.limited").get_attribute("d"))
    assert drawn.startswith("M"), drawn
    reading = page.text("#reading")
    chart.send_keys(Keys.HOME)
    eventually("another minute by keyboard", lambda: page.text("#reading") != reading)
    assert chart.get_attribute("aria-valuetext") == page.text("#reading")
    page.find("#traffic-details summary").click()
    page.shows("#traffic-table", "limited, authenticated")
    page.screenshot("light")


def explains_a_request_by_its_id(page):
    page.opened()
    request_id = refused("explained")
    page.find("#why-id").send_keys(request_id, Keys.ENTER)
    page.shows("#why-answer", 'Refused by "writes"')
    for words in (request_id, "route\nsite", "2 of 2", "2/1h", "exact, sliding window", "would have passed", "generation"):
        page.shows("#why-answer", words)
    page.find("#why-id").clear()
    page.find("#why-id").send_keys("nothing-of-this-id", Keys.ENTER)
    page.shows("#why-answer", "No refusal with this id is kept")


def an_override_from_click_to_effect(page):
    page.opened()
    refused("override")
    key = page.hash_of("override")
    page.act("#top-table", key, "Override")
    page.shows("#change-title", "Override")
    page.find("#change-rate").send_keys("600/1m")
    page.find("#change-do").click()
    page.shows("#change-error", "Write a reason")
    page.find("#change-reason").send_keys("a customer's launch")
    page.find("#change-do").click()
    page.shows("#overrides-table", key)
    page.shows("#overrides-table", "600/1m")
    page.shows("#overrides-table", "a customer's launch")
    eventually("requests pass", lambda: send("override")[0] == 200)
    page.shows("#audit-table", "a customer's launch")
    page.act("#overrides-table", key, "Undo")
    page.find("#change-reason").send_keys("launch is over")
    page.find("#change-do").click()
    page.shows("#overrides-table", "None.")
    eventually("requests are refused again", lambda: send("override")[0] == 429)


def a_ban_and_its_end(page):
    page.opened()
    assert send("banned")[0] == 200
    page.hash_of("banned")
    answer = "#key-answer [data-action=%s]"
    page.find(answer % "ban").click()
    page.find("#change-reason").send_keys("scraping")
    page.find("#change-do").click()
    page.shows("#key-answer", "because: scraping")
    eventually("the key is refused", lambda: send("banned")[0] == 429)
    page.find(answer % "unban").click()
    page.find("#change-reason").send_keys("a mistake")
    page.find("#change-do").click()
    page.shows("#key-answer", "ban\nnone")
    page.find(answer % "reset").click()
    page.find("#change-reason").send_keys("as an excuse")
    page.find("#change-do").click()
    page.shows("#key-answer", "spent\n0 of 2")
    eventually("the key passes", lambda: send("banned")[0] == 200)


def a_wrong_token_is_said_and_not_repeated(page):
    page.open(token="not-the-token-of-this")
    page.shows("#problem", "The token is wrong")
    page.requests()
    observe_for(6)
    asked = page.requests()
    assert not asked, f"a wrong token is tried again: {asked}"
    page.give(TOKEN)
    page.shows("#facts", "generation")
    eventually("the problem is gone", lambda: not page.find("#problem").is_displayed())


def ten_thousand_routes_stay_quick(page):
    page.opened()
    page.shows("#routes-state", "10,00")
    rows = len(page.all("#routes-table tbody tr"))
    assert 0 < rows <= 50, rows
    nodes = page.script("return document.getElementsByTagName('*').length")
    assert nodes < 5000, nodes
    began = time.monotonic()
    page.find("#routes-filter").send_keys("route-09999")
    page.shows("#routes-table", "route-09999")
    took = time.monotonic() - began
    assert took < 5, took
    page.find("#routes-filter").clear()
    page.find("#routes-filter").send_keys("route")
    eventually("all again", lambda: len(page.all("#routes-table tbody tr")) == 50)
    page.find("#routes-table .row button:nth-of-type(2)").click()
    page.shows("#routes-table", "51 to 100 of 10,000")
    longest = page.script("""
        return new Promise(resolve => {
          let longest = 0;
          new PerformanceObserver(list => { for (const task of list.getEntries()) longest = Math.max(longest, task.duration); })
            .observe({ type: 'longtask', buffered: true });
          setTimeout(() => resolve(longest), 5000);
        });""")
    assert longest < 1000, f"the page was blocked for {longest} ms"


def hostile_text_stays_text(page):
    # Who makes a change is in a header too (`admin.by_header`).
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {"x-forwarded-user": HOSTILE}})
    page.opened()
    # However these are answered, nothing of them may run.
    send("hostile", path="/%3Cscript%3Ewindow.owned=1%3C/script%3E")
    send("hostile", path="/?q=%3Cscript%3Ewindow.owned=1%3C/script%3E")
    refused("hostile", more={"user-agent": HOSTILE, "referer": HOSTILE}.items())
    key = page.hash_of("hostile")
    page.act("#top-table", key, "Override")
    page.find("#change-rate").send_keys("600/1m")
    page.find("#change-reason").send_keys(HOSTILE)
    page.find("#change-do").click()
    page.shows("#overrides-table", HOSTILE)
    page.shows("#audit-table", HOSTILE)
    row = page.row("#overrides-table", key)
    assert row.text.count(HOSTILE) == 2, f"by whom, and why: {row.text}"
    page.shows("#key-answer", HOSTILE)
    page.find("#why-id").send_keys(HOSTILE, Keys.ENTER)
    page.shows("#why-answer", "No refusal")
    assert page.script("return window.owned") is None
    assert page.script("return document.querySelectorAll('script, img, iframe').length") == 1
    page.hash_of(HOSTILE)
    # What the page could do by mistake, the policy forbids.
    blocked = page.script("try { document.body.innerHTML = '<p>'; return 'set' } catch (error) { return error.name }")
    assert blocked == "TypeError", blocked
    page.expected_violations = 1


def an_override_by_keyboard_alone(page):
    page.opened()
    refused("keyboard")
    key = page.hash_of("keyboard")

    def press(*pressed):
        webdriver.ActionChains(page.driver).send_keys(*pressed).perform()

    def focused():
        return page.driver.switch_to.active_element

    def tab_to(what, is_it):
        for _ in range(200):
            if is_it(focused()):
                outline = page.script("return getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"the focus on {what} cannot be seen"
                return
            press(Keys.TAB)
        raise AssertionError(f"no way to {what} by tabulator")

    tab_to("the override of the key", lambda node: node.get_attribute("data-action") == "override")
    press(Keys.ENTER)
    page.shows("#change-title", "Override")
    tab_to("the rate", lambda node: node.get_attribute("id") == "change-rate")
    press("600/1m")
    tab_to("the reason", lambda node: node.get_attribute("id") == "change-reason")
    press("by keyboard", Keys.ENTER)
    page.shows("#overrides-table", key)
    eventually("requests pass", lambda: send("keyboard")[0] == 200)
    assert focused().get_attribute("data-action") == "override", "the focus is lost after the dialog"
    page.shows("#key-answer", "because: by keyboard")
    press(Keys.ENTER)
    page.shows("#change-title", "Override")
    press(Keys.ESCAPE)
    eventually("escape closes the dialog", lambda: not page.find("#change").is_displayed())


def nothing_is_wider_than_a_telephone(page):
    resize(page.driver, 360, 740)
    page.opened()
    request_id = refused("narrow")
    page.find("#why-id").send_keys(request_id, Keys.ENTER)
    page.shows("#why-answer", "Refused by")
    key = page.hash_of("narrow")

    def fits(when):
        wide = page.script("return Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
        assert wide <= 360, f"{wide} pixels {when}"

    fits("with data")
    page.act("#top-table", key, "Ban")
    page.find("#change-reason").send_keys("n" * 400)
    fits("with a dialog")
    page.screenshot("narrow-dialog")
    page.find("#change-do").click()
    page.shows("#audit-table", "nnn")
    fits("with a long word")
    page.screenshot("narrow")


def a_server_that_is_gone_is_said(page):
    page.opened()
    page.shows("#limits-table", "writes")
    os.kill(int(os.environ["TOLLGATE_PID"]), signal.SIGKILL)
    page.shows("#problem", "cannot be reached")
    page.shows("#limits-table", "writes")
    page.find("#why-id").send_keys("some-id", Keys.ENTER)
    page.shows("#why-answer", "cannot be reached")


def a_hidden_page_asks_nothing(page):
    page.opened()
    page.shows("#limits-table", "writes")
    # A browser without a screen hides no tab, so the page is told so.
    page.script("""
        Object.defineProperty(document, 'hidden', { configurable: true, get: () => true });
        document.dispatchEvent(new Event('visibilitychange'));""")
    observe_for(2)
    page.requests()
    observe_for(10)
    asked = page.requests()
    assert not asked, f"a hidden page asks {asked}"
    page.script("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'));")
    eventually("it asks again", lambda: page.requests())


# ---- What holds after every case

class ForeignSite(http.server.BaseHTTPRequestHandler):
    """An empty page of another web origin."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>foreign</title>")

    def log_message(self, *_):
        pass


# What a page of another site can make a browser send; with the token too, in case that it has leaked.
ATTACKS = """
const [admin, token, done] = arguments;
const ban = JSON.stringify({limit: "writes", key: "k-foreign", for: "1h", reason: "foreign"});
const outcomes = [];
const attempt = async (path, options) => {
  try {
    const answer = await fetch(admin + path, options);
    outcomes.push(answer.type === "opaque" ? "opaque" : (await answer.text()).slice(0, 80));
  } catch (error) { outcomes.push("refused"); }
};
(async () => {
  await attempt("keys/ban", {method: "POST", mode: "no-cors", body: ban});
  await attempt("keys/ban", {method: "POST", body: ban, headers: {Authorization: "Bearer " + token}});
  await attempt("reload", {method: "POST", mode: "no-cors"});
  await attempt("overrides", {headers: {Authorization: "Bearer " + token}});
  await attempt("status", {mode: "no-cors"});
  const form = document.createElement("form");
  Object.assign(form, {method: "POST", action: admin + "keys/ban", enctype: "text/plain", target: "sink"});
  form.append(Object.assign(document.createElement("input"), {name: ban.slice(0, -1) + ',"x":"', value: '"}'}));
  const frame = Object.assign(document.createElement("iframe"), {name: "sink"});
  const page = Object.assign(document.createElement("iframe"), {src: admin});
  document.body.append(frame, page, form);
  form.submit();
  setTimeout(() => done(outcomes), 1000);
})();
"""


def read(path):
    """What the admin API answers to the operator."""
    request = urllib.request.Request(ADMIN.rstrip("/") + path, headers={"Authorization": "Bearer " + TOKEN})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def a_page_of_another_site_changes_nothing(page):
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ForeignSite)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    try:
        page.driver.get(f"http://localhost:{site.server_port}/")
        page.driver.set_script_timeout(PATIENCE)
        outcomes = page.driver.execute_async_script(ATTACKS, ADMIN.rstrip("/") + "/", TOKEN)
    finally:
        site.shutdown()
    assert set(outcomes) <= {"opaque", "refused"}, f"a foreign page reads an answer: {outcomes}"
    assert read("/overrides")["overrides"] == [], "a foreign page has changed something"
    assert read("/audit")["changes"] == [], "a foreign page has reloaded"
    assert send("k-foreign")[0] != 429
    # From here on the page is our own, and so is what is checked afterwards.
    page.requests()
    page.everything.clear()
    page.driver.get_log("browser")
    page.open()
    page.shows("#facts", "generation")


def check_afterwards(page):
    page.requests()
    own = ADMIN.rstrip("/") + "/"
    foreign = [url for url in page.everything if not url.startswith((own, "data:"))
               and not url.startswith(("chrome:", "about:"))]
    assert not foreign, f"requests left the origin: {foreign}"
    assert page.everything, "no request was seen"
    spoken = [entry["message"] for entry in page.driver.get_log("browser")]
    violations = [text for text in spoken if re.search("content security policy|trustedhtml", text, re.I)]
    assert len(violations) <= page.expected_violations, violations
    # Refused and failed requests are written to the console by the browser itself.
    others = [text for text in spoken if text not in violations and "Failed to load resource" not in text]
    assert not others, others


CASES = [
    loads_and_updates_by_itself,
    explains_a_request_by_its_id,
    an_override_from_click_to_effect,
    a_ban_and_its_end,
    a_wrong_token_is_said_and_not_repeated,
    ten_thousand_routes_stay_quick,
    hostile_text_stays_text,
    an_override_by_keyboard_alone,
    nothing_is_wider_than_a_telephone,
    a_server_that_is_gone_is_said,
    a_hidden_page_asks_nothing,
    a_page_of_another_site_changes_nothing,
]


def main():
    driver = browser()
    try:
        page = Page(driver)
        case = {case.__name__: case for case in CASES}[sys.argv[1]]
        case(page)
        check_afterwards(page)
    finally:
        driver.quit()


main()
