"""Salmon's ``init.yaml``, translated to the keys of ``experiment.yaml``."""

from __future__ import annotations

import re
from typing import Any

from accelerando.crowd.experiment.yaml_lines import Document

__all__ = ["is_salmon", "translate"]

_PASSIVE = {"Random", "RoundRobin", "Validation"}
_DECK = {"ARR", "SRR"}
_GREEDY = {"TSTE", "STE", "CKL", "SOE", "GNMDS", "Adaptive"}
_HTML = {
    *("title", "instructions", "debrief", "max_queries", "skip_button", "arrow_keys", "css", "js"),
    *("element_top", "element_middle", "element_bottom", "element_standalone", "query_params"),
}
_OLD = {"instructions", "debrief", "max_queries", "skip_button", "d", "RandomSampling"}


def is_salmon(value: dict[str, Any]) -> bool:
    """Return True if these are keys of Salmon."""
    ours = {"items", "participants", "embedding", "completion"}
    return not (ours & set(value)) and bool({"targets", "html", "sampling"} & set(value))


def translate(value: dict[str, Any], document: Document) -> tuple[dict[str, Any], list[str]]:
    r"""Return the experiment in our keys, and notices about keys without a counterpart.

    Examples
    --------
    >>> from accelerando.crowd.experiment.yaml_lines import read_yaml
    >>> document = read_yaml("targets: [a, b, c]\nhtml: {max_queries: 25}")
    >>> ours, notices = translate(document.value, document)
    >>> ours["participants"]["answers"], ours["items"]
    (25, ['a', 'b', 'c'])
    """
    # Pages written for Salmon ask for queries at its addresses.
    ours: dict[str, Any] = {"name": "experiment", "salmon_routes": True}
    notices: list[str] = []
    for key in value:
        if key not in ("targets", "samplers", "sampling", "html"):
            where = "move it under `html:`" if key in _OLD else "Salmon has no such key"
            document.problem((key,), f"{key!r} does not belong here.", f"Remove it; {where}.")
    if value.get("targets") is not None:
        ours["items"] = value["targets"]
        hosts = re.findall(r"https?://[A-Za-z0-9.-]+(?::[0-9]+)?", str(value["targets"]))
        if hosts:
            ours["media_hosts"] = sorted(set(hosts))
            notices.append(
                f"items show pictures of other servers ({', '.join(sorted(set(hosts)))}); "
                "participants' browsers will ask those servers for them."
            )
    _html(_mapping(value, "html", document), ours, notices, document)
    _samplers(value, ours, notices, document)
    return ours, notices


def _html(
    html: dict[str, Any], ours: dict[str, Any], notices: list[str], document: Document
) -> None:
    for theirs, mine in (("title", "title"), ("instructions", "instructions"), ("css", "css")):
        if html.get(theirs) is not None:
            ours[mine] = document.raw.get(("html", theirs), html[theirs])
    debrief = html.get("debrief", "<b>Thanks!</b> Please use the participant ID below.")
    ours["debrief"] = str(debrief)
    for theirs, mine in (("skip_button", "skip"), ("arrow_keys", "keyboard")):
        if theirs in html:
            ours[mine] = html[theirs]
    most = html.get("max_queries", 50)
    if not isinstance(most, int):
        document.problem(("html", "max_queries"), f"{most!r} is not an integer.")
        most = 50
    ours["participants"] = {"answers": most if most > 0 else None}
    # Salmon shows the participant's ID at the end, for participants to copy.
    ours["completion"] = {"done": {"code": "{participant}"}}
    slots = {
        place: str(html[f"element_{place}"])
        for place in ("top", "middle", "bottom")
        if html.get(f"element_{place}")
    }
    if html.get("element_standalone"):
        slots["top"] = str(html["element_standalone"]) + slots.get("top", "")
    if slots:
        ours["slots"] = slots
    if html.get("js"):
        notices.append("html.js is not run: pages here carry no scripts of others.")
    parameters = html.get("query_params")
    if isinstance(parameters, list):
        kept = [str(name) for name in parameters if name != "puid"]
        ours["participants"]["keep_parameters"] = kept
    notices += [
        f"html.{key} is for templates of one's own and not used." for key in set(html) - _HTML
    ]


def _samplers(
    value: dict[str, Any], ours: dict[str, Any], notices: list[str], document: Document
) -> None:
    sampling = _mapping(value, "sampling", document)
    common = _mapping(sampling, "common", document) or {"d": 2}
    embedding: dict[str, Any] = {"dimensions": common.get("d", 2)}
    samplers = _mapping(value, "samplers", document) or {"random": {"class": "Random"}}
    ours["samplers"] = {}
    for name, options in samplers.items():
        shared = {key: value for key, value in common.items() if key != "d"}
        given = shared | (options if isinstance(options, dict) else {})
        path = ("samplers", name)
        made = _sampler(name, given, embedding, path, notices, document)
        if made is not None:
            ours["samplers"][_slug(name)] = made
    ours["embedding"] = embedding
    if "probs" in sampling and isinstance(sampling["probs"], dict):
        if sum(v for v in sampling["probs"].values() if isinstance(v, int | float)) != 100:
            document.problem(("sampling", "probs"), "the percentages do not sum to 100.")
        if set(sampling["probs"]) != set(samplers):
            document.problem(
                ("sampling", "probs"), f"must name the samplers {', '.join(samplers)}."
            )
        else:
            ours["shares"] = {_slug(name): share for name, share in sampling["probs"].items()}
    per_user = sampling.get("samplers_per_user", 0)
    if per_user not in (0, 1):
        document.problem(("sampling", "samplers_per_user"), f"{per_user!r} is neither 0 nor 1.")
    ours["participants"]["one_sampler"] = per_user == 1
    fixed: dict[int, Any] = {}
    for place, detail in (sampling.get("details") or {}).items():
        if not isinstance(detail, dict) or not str(place).isdigit():
            document.problem(("sampling", "details", place), "must be {sampler: …, query: …}.")
            continue
        entry = {key: detail[key] for key in ("sampler", "query") if key in detail}
        if "sampler" in entry:
            entry["sampler"] = _slug(str(entry["sampler"]))
        fixed[int(place)] = entry
    if fixed:
        ours["fixed"] = fixed
    for key in set(sampling) - {"common", "probs", "samplers_per_user", "details"}:
        document.problem(("sampling", key), f"{key!r} is unknown.")


def _sampler(
    name: str,
    options: dict[str, Any],
    embedding: dict[str, Any],
    path: tuple[str, str],
    notices: list[str],
    document: Document,
) -> dict[str, Any] | None:
    kind = str(options.pop("class", name))
    if "d" in options:
        embedding["dimensions"] = options.pop("d")
    module = str(options.pop("module", kind)).lower()
    if module in ("tste", "ste", "ckl", "soe", "gnmds"):
        embedding["noise"] = module
    targets = options.pop("targets", None)
    made: dict[str, Any] = {} if targets is None else {"items": targets}
    if kind in _PASSIVE:
        made["class"] = kind
        if kind == "Validation":
            queries = options.pop("queries", None)
            count = options.pop("n_queries", 20)
            made["queries"] = queries if queries is not None else _some_queries(document, count)
    elif kind in _DECK:
        made["class"] = "ARR"
        if kind == "SRR":
            notices.append(f"sampler {name!r}: SRR is served as ARR.")
    elif kind in _GREEDY:
        made["class"] = "Uncertainty" if options.get("scorer") == "uncertainty" else "Greedy"
    else:
        document.problem(
            path,
            f"there is no sampler class {kind!r}.",
            f"There are {', '.join(sorted(_PASSIVE | _DECK | _GREEDY))}.",
        )
        return None
    if isinstance(options.get("R"), int) and isinstance(document.value.get("targets"), list):
        embedding["warmup"] = max(1, options["R"] * len(document.value["targets"]))
    ignored = sorted(set(options) - {"R", "scorer"})
    if ignored:
        notices.append(
            f"sampler {name!r}: {', '.join(ignored)} {'has' if len(ignored) == 1 else 'have'} no "
            "counterpart; fits and searches here need no tuning."
        )
    return made


def _some_queries(document: Document, count: Any) -> list[list[int]]:
    """Return evenly spread validation queries; Salmon draws them at random."""
    targets = document.value.get("targets")
    n_items = len(targets) if isinstance(targets, list) else targets
    if not isinstance(n_items, int) or n_items < 3 or not isinstance(count, int):
        return [[0, 1, 2]]
    return [
        [k % n_items, (k + 1 + k // n_items) % n_items, (k + n_items // 2 + 1) % n_items]
        for k in range(count)
        if len({k % n_items, (k + 1 + k // n_items) % n_items, (k + n_items // 2 + 1) % n_items})
        == 3
    ] or [[0, 1, 2]]


def _mapping(value: dict[str, Any], key: str, document: Document) -> dict[str, Any]:
    found = value.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        document.problem((key,), "must hold keys and values.", "Indent what belongs to it.")
        return {}
    return found


def _slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9_-]+", "-", str(name).lower()).strip("-_")
    return slug[:60] or "sampler"
