"""A real server behind nginx with the documented configuration: browsers and attackers."""

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.crowd.serve.test_processes import certificate, folder  # noqa: F401 (fixture)
from tests.crowd.serving import PASSWORD, serving
from tests.packages import install

PAGE = Path(__file__).parents[3] / "docs" / "crowd-server.md"
JSON = {"content-type": "application/json"}
HERE = "127.0.0.77"  # of nginx alone: other tests take ports of 127.0.0.1 while it starts


def free_port():
    with socket.socket() as listener:
        listener.bind((HERE, 0))
        return listener.getsockname()[1]


def nginx():
    if shutil.which("nginx") is None:
        install("nginx-light")
    if shutil.which("nginx") is None:
        assert not os.environ.get("CI"), "nginx could not be installed on CI"
        pytest.skip("nginx is not installed, and apt-get cannot install it here")
    return shutil.which("nginx")


class Browser:
    """A client with cookies, at an address of its own."""

    def __init__(self, port, prefix, address="127.0.0.2"):
        self.port, self.prefix, self.address = port, prefix, address
        self.host, self.cookies = f"crowd.example.org:{port}", {}

    def send(self, method, path, body=None, **headers):
        line = http.client.HTTPSConnection(
            HERE,
            self.port,
            context=ssl._create_unverified_context(),
            timeout=60,
            source_address=(self.address, 0),
        )
        told = {"host": self.host, **{k.replace("_", "-"): v for k, v in headers.items()}}
        if self.cookies:
            told["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        line.request(method, self.prefix + path, body, told)
        reply = line.getresponse()
        text = reply.read().decode()
        for cookie in reply.headers.get_all("set-cookie") or []:
            name, _, value = cookie.partition("=")
            self.cookies[name] = value.partition(";")[0]
        line.close()
        return reply, text


@pytest.fixture(scope="module", params=["", "/crowd"])
def place(request, tmp_path_factory, certificate):  # noqa: F811
    """Port and URL prefix of a server behind the nginx of the page, on a port other than 443."""
    program, prefix = nginx(), request.param
    room, port = tmp_path_factory.mktemp("nginx"), free_port()
    block = re.search(r"```text\n(server \{.*?)```", PAGE.read_text(), re.S)[1]
    options = ["--proxy", "127.0.0.1", *(["--root-path", prefix] if prefix else [])]
    with serving(folder(room), *options) as server:
        assert ("must strip /crowd" in server.output()) == bool(prefix)
        there = server.url.removeprefix("http://").removesuffix(prefix)
        if prefix:  # as the sentence below the block says
            block = block.replace("location / {", f"location {prefix}/ {{")
            block = block.replace("127.0.0.1:8421;", "127.0.0.1:8421/;")
        block = block.replace("listen 443", f"listen {HERE}:{port}")
        block = block.replace("127.0.0.1:8421", there)
        for name, file in (("fullchain", "cert.pem"), ("privkey", "key.pem")):
            block = re.sub(rf"/\S+{name}\.pem", str(certificate / file), block)
        spool = "".join(
            f"{kind}_temp_path {room}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.geteuid() == 0 else ""
        (room / "nginx.conf").write_text(
            f"{user} daemon off; pid {room}/pid; events {{}}\n"
            f"http {{ access_log off; {spool} {block} }}\n"
        )
        command = [program, "-e", str(room / "log"), "-c", str(room / "nginx.conf")]
        process = subprocess.Popen(command)
        try:
            while True:
                try:
                    socket.create_connection((HERE, port), 1).close()
                    break
                except OSError:
                    assert process.poll() is None, (room / "log").read_text()
                    time.sleep(0.05)
            yield port, prefix
        finally:
            process.terminate()
            process.wait(20)


def test_the_sign_in_form_works_on_a_port_other_than_443(place):
    browser = Browser(*place)
    _, page = browser.send("GET", "/sign-in")
    form = {
        "name": "experimenter",
        "password": PASSWORD,
        "csrf": re.search('name="csrf" value="([^"]+)"', page)[1],
        "next": "/experiments/eggs",
    }
    kind = {"content_type": "application/x-www-form-urlencoded"}
    # What browsers send with a form under the policy no-referrer.
    done, _ = browser.send("POST", "/sign-in", urlencode(form), origin="null", **kind)
    assert (done.status, done.headers["location"]) == (303, f"{place[1]}/experiments/eggs")
    cookie = next(c for c in done.headers.get_all("set-cookie") if "session" in c)
    start, path = ("__Secure-", "/crowd/") if place[1] else ("__Host-", "/")
    assert cookie.startswith(f"{start}accelerando_session=")
    assert {"Secure", "HttpOnly", f"Path={path}"} <= set(cookie.split("; "))
    assert done.headers["strict-transport-security"] == "max-age=31536000"
    assert browser.send("GET", "/experiments/eggs")[0].status == 200


def test_people_answer_and_pages_of_other_sites_do_not(place):
    browser = Browser(*place)
    own, path = f"https://{browser.host}", "/api/v1/experiments/eggs"
    page, _ = browser.send("GET", "/e/eggs/")
    assert page.status == 200
    for origin in ("https://evil.test", "https://crowd.example.org", "http://127.0.0.1:8421"):
        reply, _ = browser.send("POST", f"{path}/participants", "{}", origin=origin, **JSON)
        assert reply.status == 403, origin
    reply, text = browser.send("POST", f"{path}/participants", "{}", origin=own, **JSON)
    assert reply.status == 200, text
    query = json.loads(text)["queries"][0]
    body = json.dumps({"query": query["id"], "winner": query["left"]["item"]})
    reply, text = browser.send("POST", f"{path}/answers", body, origin=own, **JSON)
    assert json.loads(text)["stored"]


def test_no_header_hides_the_address_of_who_guesses_passwords(place):
    """Nor does one hide TLS, or lead a redirect elsewhere."""

    def guess(number, address):
        made_up = f"203.0.113.{number}"
        headers = {
            "x_forwarded_for": f"{made_up}, 127.0.0.1",
            "x_real_ip": made_up,
            "forwarded": f"for={made_up};host=evil.test;proto=http",
            "x_forwarded_host": "evil.test",
            "x_forwarded_proto": "http",
        }
        body = json.dumps({"name": "nobody", "password": f"guess {number}"})
        caller = Browser(*place, address=address)
        return caller.send("POST", "/api/v1/session", body, **headers, **JSON)[0]

    replies = [guess(number, "127.0.0.3") for number in range(10)]
    assert [reply.status for reply in replies] == [401] * 8 + [429] * 2
    assert all(reply.headers["strict-transport-security"] for reply in replies)
    assert guess(99, "127.0.0.4").status == 401, "others are not locked out"
    moved, _ = Browser(*place).send("GET", "/e/eggs", x_forwarded_host="evil.test")
    assert moved.headers["location"] == f"{place[1]}/e/eggs/"
