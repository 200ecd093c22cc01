"""An experimenter with a script: makes experiments and reads answers over HTTP, as the pages do."""

import csv
import io
import json
from typing import Any

import httpx

from accelerando.crowd._demo_colors import color_disc, png
from accelerando.crowd.client import Participant

NAME, PASSWORD = "experimenter", "correct horse battery"

RANDOM = {"random": {"class": "Random"}}


def color_files(count: int = 12) -> list[tuple[str, bytes]]:
    """Name and content of pictures."""
    return [(f"{k:02d}-{c.name}.png", png(c.rgb)) for k, c in enumerate(color_disc()[:count])]


class Lab:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.http = httpx.Client(base_url=self.url, timeout=30)
        signed = self.http.post("/api/v1/session", json={"name": NAME, "password": PASSWORD})
        signed.raise_for_status()
        self.http.headers["X-CSRF-Token"] = signed.json()["csrf"]

    def new(self, name: str, files: list[tuple[str, bytes]] | None = None, **settings: Any) -> str:
        """Make an experiment and return its participant link."""
        text = json.dumps({"name": name, "samplers": RANDOM, **settings})
        parts = [("settings", ("experiment.yaml", text.encode()))]
        parts += [("items", file) for file in color_files() if files is None]
        parts += [("items", file) for file in files or []]
        # A second try of a test finds the experiment of its first.
        self.http.request("DELETE", f"/api/v1/experiments/{name}", json={"confirm": name})
        made = self.http.post("/api/v1/experiments", files=parts)
        assert made.status_code == 201, made.text
        return f"{self.url}/e/{name}/"

    def answers(self, name: str) -> list[dict[str, str]]:
        """Rows of answers.csv."""
        text = self.http.get(f"/api/v1/experiments/{name}/downloads/answers.csv")
        text.raise_for_status()
        return list(csv.DictReader(io.StringIO(text.text)))

    def take_part(self, name: str, who: str, answers: int) -> None:
        """Answer some queries as a participant without a browser, always the left one."""
        person = Participant(self.url, name, {"participant": who})
        for _ in range(answers):
            query = person.next()
            assert query is not None
            person.answer(query, query.left, response_time=1.25, network_latency=0.02)
        person.close()

    def close(self) -> None:
        self.http.close()
