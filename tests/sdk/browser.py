"""A headless Chromium, driven over WebDriver's plain HTTP. No package beyond Debian's chromium and chromium-driver."""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

START_LIMIT_S = 60
STEP_LIMIT_S = 120
POLL_S = 0.05
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER = "\ue007"

HINT = "headless Chromium is needed for the page's tests. On Debian: apt-get install chromium chromium-driver"


def program(variable: str, *names: str) -> str:
    """The first of them that is there; what the environment names goes first."""
    for name in filter(None, (os.environ.get(variable), *names)):
        found = shutil.which(name)
        if found:
            return found
    raise AssertionError(f"{' or '.join(names)} is missing; {HINT}")


class Browser:
    def __init__(self, dark=False, size=(1280, 900)):
        chromium = program("CHROMIUM", "chromium", "chromium-browser", "google-chrome")
        driver = program("CHROMEDRIVER", "chromedriver")
        self.profile = tempfile.TemporaryDirectory(prefix="dynamo-chromium-", ignore_cleanup_errors=True)
        self.driver = subprocess.Popen(
            [driver, "--port=0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.session = ""
        try:
            self.url = f"http://127.0.0.1:{self._port()}"
            self._open(chromium, dark, size)
        except BaseException:
            self.close()
            raise

    def _port(self) -> int:
        found, lines = threading.Event(), []

        def read():
            for line in self.driver.stdout:
                lines.append(line)
                if "successfully on port" in line:
                    found.set()
            found.set()

        threading.Thread(target=read, daemon=True).start()
        found.wait(START_LIMIT_S)
        port = re.search(r"successfully on port (\d+)", "".join(lines))
        assert port, "chromedriver did not say where it listens:\n" + "".join(lines)
        return int(port.group(1))

    def _open(self, chromium, dark, size):
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-default-apps",
            # The page is to work without the network: only this machine can be reached.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--force-prefers-reduced-motion",
            f"--user-data-dir={self.profile.name}",
            f"--window-size={size[0]},{size[1]}",
        ]
        if dark:
            flags.append("--blink-settings=preferredColorScheme=0")
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": chromium, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{answer['sessionId']}"

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=STEP_LIMIT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from None

    def go(self, url):
        self._call("POST", self.session + "/url", {"url": url})

    def run(self, script, *arguments):
        """The value that the script returns."""
        return self._call("POST", self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def element(self, css):
        return self._call("POST", self.session + "/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self._call("POST", f"{self.session}/element/{self.element(css)}/click", {})

    def type(self, css, text):
        self._call("POST", f"{self.session}/element/{self.element(css)}/value", {"text": text})

    def text(self, css) -> str:
        """Of all that fit, hidden ones too."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent).join('\\n')", css)

    def visible(self, css) -> bool:
        return self.run("const e = document.querySelector(arguments[0]); return !!e && e.getClientRects().length > 0", css)

    def until(self, holds, what, limit_s=STEP_LIMIT_S):
        deadline = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < deadline, f"waited in vain: {what}\n{self.text('body')}\n{self.log()}"
            time.sleep(POLL_S)

    def log(self) -> list:
        """What the console has said since the last call."""
        return [entry["message"] for entry in self._call("POST", self.session + "/se/log", {"type": "browser"})]

    def screenshot(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._call("GET", self.session + "/screenshot")))

    def close(self):
        if self.session:
            try:
                self._call("DELETE", self.session)
            except (AssertionError, OSError):
                pass
        self.driver.terminate()
        try:
            self.driver.wait(10)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            self.driver.wait()
        self.profile.cleanup()
