"""The ASVS checklist: every line names a test that exists, and the short ones are here."""

import ast
import re
import ssl
from pathlib import Path

import pytest

from accelerando.crowd.web import accounts, auth
from tests.crowd.web.conftest import API, PASSWORD

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parents[1] / "docs"
PAGE = (DOCS / "crowd-asvs.md").read_text()
CODE = TESTS.parents[1] / "src" / "accelerando" / "crowd"
SERVICE = [*CODE.glob("web/*.py"), *CODE.glob("store/*.py"), *CODE.glob("experiment/*.py")]


def rows(title):
    """Cells of the table below a heading."""
    part = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_checklist_has_all_requirements_of_level_1_once():
    met, others = rows("Level 1, met"), rows("Level 1, the others")
    items = [row[0] for row in met + others]
    assert len(items) == len(set(items)) == 70
    assert f"{len(met)} that the crowd service meets" in PAGE
    assert f"{len(others)} that do not apply" in PAGE


@pytest.mark.parametrize("title", ["Level 1, met", "Level 2, as far as it is met"])
def test_the_tests_of_the_checklist_exist(title):
    assert len(rows(title)) >= 8
    for item, _, how, test in rows(title):
        file, _, name = test.strip("`| ").partition("::")
        assert how, item
        assert f"def {name}(" in (TESTS / file).read_text(), (item, test)


def test_no_statement_is_built_from_text():
    """The few statements in text have no values of requests: numbers, pragmas, names of columns."""
    found = set()
    for file in SERVICE:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.JoinedStr):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called in ("text", "execute", "exec_driver_sql"):
                    found.add((file.name, called))
    assert found <= {("store.py", "text"), ("store.py", "exec_driver_sql"), ("store.py", "execute"),
                     ("migrate.py", "exec_driver_sql"), ("archive.py", "text"),
                     ("archive.py", "exec_driver_sql")}  # fmt: skip


def test_the_service_runs_no_commands_and_no_code():
    """Only the decoder of pictures is a program, and no word of its command line is an input."""
    started = []
    for file in SERVICE:
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                if "subprocess" in names:
                    started.append(file.name)
                assert not names & {"pickle", "cloudpickle", "marshal"}, file.name
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("subprocess."):
                assert ast.unparse(node.args[0]) == "[sys.executable, '-I', str(_PROGRAM)]"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), file.name
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("system", "popen", "unsafe_load"), file.name
    assert started == ["decoding.py"]


def test_scripts_of_the_pages_make_no_markup_from_text():
    scripts = list(CODE.glob("web/static/**/*.js"))
    assert len(scripts) > 15
    for script in scripts:
        text = script.read_text()
        assert "eval(" not in text
        assert "document.write" not in text
        for line in text.splitlines():
            if "innerHTML" in line or "insertAdjacentHTML" in line:
                # HTML that the server has cleaned, on pages of participants.
                assert script.parent.name == "participant", (script.name, line)


@pytest.mark.parametrize(("root", "prefix"), [("", "__Host-"), ("/crowd", "__Secure-")])
def test_cookies_have_a_prefix_under_tls(site, root, prefix):
    client = site.visitor(root_path=root)
    client.base_url = "https://crowd.test"
    made = client.post(
        f"{root}/api/v1/session", json={"name": "experimenter", "password": PASSWORD}
    )
    set_cookie = made.headers["set-cookie"]
    assert set_cookie.startswith(f"{prefix}{auth.COOKIE}=")
    assert "Secure" in set_cookie
    assert f"Path={root}/;" in set_cookie
    assert client.get(f"{root}{API}").status_code == 200
    client.cookies.clear()
    client.cookies.set(auth.COOKIE, set_cookie.partition("=")[2].partition(";")[0])
    assert client.get(f"{root}{API}").status_code == 401, "a name that any host could plant"


PATHS = ["/", "/e/eggs/", "/e/eggs/style.css", "/sign-in", "/static/base.css", "/health/live",
         "/static/experimenter/dashboard.js", "/static/icon.svg", "/favicon.ico", "/nowhere",
         "/api/v1/openapi.json", API, f"{API}/downloads/answers.csv",
         f"{API}/downloads/codebook.md", "/experiments"]  # fmt: skip


def test_strict_transport_security_is_on_every_response_under_tls(site):
    client = site.experimenter()
    client.base_url = "https://crowd.test"
    for path in PATHS:
        header = client.get(path).headers["strict-transport-security"]
        assert int(re.search(r"max-age=(\d+)", header)[1]) >= 31536000, path


def test_no_response_allows_other_origins(site):
    client = site.experimenter()
    for path in PATHS:
        for method in ("GET", "OPTIONS"):
            reply = client.request(method, path, headers={"origin": "https://evil.test"})
            assert not [name for name in reply.headers if name.startswith("access-control")], path


def test_content_types_name_their_character_set(site):
    client = site.experimenter()
    for path in PATHS:
        kind = client.get(path).headers["content-type"]
        if kind.startswith("text/") or "xml" in kind:
            assert "charset=utf-8" in kind.lower(), (path, kind)


def test_the_limits_of_guessing_are_documented():
    text = (DOCS / "crowd-attacks.md").read_text()
    assert "eight per address within five minutes" in text
    assert "an account is never locked" in text
    assert (accounts._PER_CALLER, accounts._WINDOW, accounts._PER_NAME) == (8, 300.0, 60)


def test_the_roles_are_documented():
    text = (DOCS / "crowd-server.md").read_text()
    for role in ("viewer", "editor", "owner", "administrator"):
        assert role in text


def test_password_fields_are_masked_and_take_password_managers():
    shown = {"sign_in.html": 1, "account.html": 3}
    for name, count in shown.items():
        text = (CODE / "web" / "templates" / name).read_text()
        fields = re.findall(r'<input type="password"[^>]*>', text)
        assert len(fields) == count
        assert all("autocomplete=" in field and "onpaste" not in field for field in fields)


def test_there_are_no_secret_questions(site):
    text = str(site.app.openapi()["paths"]).lower()
    assert "hint" not in text
    assert "secret question" not in text


def test_session_tokens_are_long_and_differ(site):
    tokens = {site.experimenter().cookies[auth.COOKIE] for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) >= 43 for token in tokens), "256 bits"


def test_only_approved_hash_functions():
    found = {
        (file.name, word)
        for file in SERVICE
        for word in ("md5", "sha1", '"md4"')
        if word in file.read_text()
    }
    assert found == {("totp.py", "sha1")}, "RFC 6238 demands it, inside HMAC"


def test_tls_of_the_server_is_recent():
    """Uvicorn makes this kind of context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_nothing_but_static_files_is_served_from_disk(visitor):
    tried = ["/.git/config", "/static/.git/config", "/static/../app.py", "/static/%2e%2e/app.py"]
    tried += ["/experiment.yaml", "/crowd.sqlite", "/media/eggs/../../crowd.sqlite"]
    for path in tried:
        assert visitor.get(path).status_code in (404, 422), path


def test_signing_out_clears_the_cache(site):
    client = site.experimenter()
    assert client.get("/experiments").headers["cache-control"] == "no-store"
    reply = client.delete("/api/v1/session")
    assert reply.headers["clear-site-data"] == '"cache"'
