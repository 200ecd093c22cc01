// The panels of the dashboard: each function draws what the server said into its element.

import { histogram, namedBars } from "../charts/bars.js";
import { lineChart } from "../charts/line.js";
import { duration, number, percent } from "../charts/scale.js";
import { html } from "../charts/svg.js";

const byId = (id) => document.getElementById(id);

export function drawSamplers(samplers) {
  namedBars(byId("samplers"), {
    rows: samplers.map((sampler, k) => ({ name: sampler.name, value: sampler.answers, color: (k % 6) + 1, text: samplerText(sampler) })),
    nothing: "No sampler.",
  });
}

function samplerText(sampler) {
  return sampler.fallback ? `${number(sampler.answers)} (${number(sampler.fallback)} at random)` : number(sampler.answers);
}

export function showNumbers({ summary, accuracy, quality, coverage }) {
  const latest = accuracy.latest;
  const facts = [
    ["Answers", number(summary.answers), summary.skips ? `${number(summary.skips)} skipped` : ""],
    ["Participants", number(summary.participants), participantNote(summary, quality)],
    ["Items", number(summary.items), coverage.never ? `${number(coverage.never)} not asked about yet` : "all asked about"],
    ["Accuracy", latest === null || latest === undefined ? "–" : percent(accuracyOf(latest)), "on held-out answers"],
    ["Answers to go", toGo(accuracy), accuracy.target ? `for ${percent(accuracy.target)}` : ""],
    ["Attention checks", quality.checks ? percent(quality.passed_checks / quality.checks) : "–", quality.checks ? `${number(quality.passed_checks)} of ${number(quality.checks)} passed` : "none asked"],
  ];
  byId("numbers").replaceChildren(
    ...facts.map(([name, value, note]) => html("div", {}, html("dt", {}, name), html("dd", {}, value), html("dd", { class: "note" }, note || " "))),
  );
}

const accuracyOf = (latest) => (typeof latest === "number" ? latest : latest.accuracy);

function toGo({ answers_to_go: middle }) {
  return middle === null || middle === undefined ? "–" : middle <= 0 ? "enough" : `≈ ${number(middle)}`;
}

export function drawAccuracy({ points, target, sentence }) {
  lineChart(byId("accuracy"), {
    label: `Held-out accuracy over the number of answers. ${sentence ?? ""}`,
    series: [{ name: "accuracy", color: 1, points: points.map((p) => [p.answers, p.accuracy]), band: points.map((p) => [p.answers, p.low, p.high]) }],
    yRange: [Math.min(0.5, ...points.map((p) => p.low)), 1],
    yFormat: percent,
    xLabel: "answers",
    rule: target,
    nothing: "It can be measured after about a hundred answers.",
  });
  byId("accuracy-after").textContent = sentence ?? "";
}

export function drawActivity(id, { bin_seconds: width, start, counts }, what, note) {
  byId(`${id}-note`).textContent = counts.length ? note : "";
  const clock = new Intl.DateTimeFormat(undefined, clockStyle(width * counts.length));
  histogram(byId(id), {
    label: `${what} over time: ${note}`,
    edges: counts.concat(0).map((_, k) => start + k * width),
    counts,
    color: id === "arrivals" ? 3 : 1,
    time: true,
    format: (at) => clock.format(new Date(at * 1000)),
    xLabel: `per ${{ 60: "minute", 3600: "hour", 86400: "day" }[width] ?? duration(width)}`,
    nothing: "Nothing yet.",
  });
}

/** People per bin of the plot of answers, so that the two can be compared. */
export function drawArrivals(times, { bin_seconds: width, start, counts }) {
  const first = Math.min(start, ...times);
  const begin = start - Math.ceil((start - first) / width) * width;
  const last = Math.max(start + counts.length * width, ...times);
  const bins = new Array(times.length ? Math.floor((last - begin) / width) + 1 : 0).fill(0);
  for (const at of times) bins[Math.floor((at - begin) / width)] += 1;
  drawActivity("arrivals", { bin_seconds: width, start: begin, counts: bins }, "participants", `${number(times.length)} in all`);
}

function clockStyle(span) {
  if (span > 2 * 86400) return { month: "short", day: "numeric", hour: "2-digit" };
  if (span > 600) return { hour: "2-digit", minute: "2-digit" };
  return { hour: "2-digit", minute: "2-digit", second: "2-digit" };
}

export function drawTimes(id, { edges, counts }) {
  // Times grow by factors: bars of equal width, and none beyond the slowest.
  const used = counts.findLastIndex((count) => count > 0) + 1;
  counts = counts.slice(0, used);
  edges = [...edges, Infinity].slice(0, used + 1);
  const middle = medianOf(edges, counts);
  byId(`${id}-note`).textContent = middle === null ? "" : `median ${duration(middle)}`;
  histogram(byId(id), { label: `${byId(`${id}-title`).textContent}: median ${duration(middle)}`, edges, counts, even: true, color: id === "latency" ? 4 : 2, format: (seconds) => (seconds === Infinity ? "more" : duration(seconds)), nothing: "No answer yet.", mark: middle === null ? null : { value: middle, label: "median" } });
}

/** The median of binned numbers, evenly spread inside each bin. */
function medianOf(edges, counts) {
  const half = counts.reduce((sum, count) => sum + count, 0) / 2;
  let before = 0;
  for (let k = 0; k < counts.length; k += 1) {
    if (counts[k] > 0 && before + counts[k] >= half) {
      const width = edges[k + 1] - edges[k];
      return width === Infinity ? edges[k] : edges[k] + (width * (half - before)) / counts[k];
    }
    before += counts[k];
  }
  return null;
}

/** How often each item was asked about, the least asked first. */
export function drawCoverage(items, coverage, names) {
  byId("coverage-note").textContent = coverage.max ? `${number(coverage.min)} to ${number(coverage.max)}, median ${number(coverage.median)}` : "";
  const order = items.queries.map((times, k) => ({ times, k })).sort((a, b) => a.times - b.times);
  histogram(byId("coverage"), {
    label: `Questions per item, from the least to the most asked: ${coverage.min} to ${coverage.max}`,
    edges: order.map((_, k) => k).concat(order.length),
    counts: order.map(({ times }) => times),
    names: order.map(({ k }) => names[k]),
    color: 5,
    xLabel: "items, least asked first",
    nothing: "No question yet.",
  });
}

export function showHealth({ worker, queue, samplers }) {
  const late = worker.alive === false || worker.error;
  const ready = queue?.ready ?? samplers.reduce((sum, one) => sum + (one.queued ?? 0), 0);
  const facts = [
    ["Worker", html("span", { class: `state ${late ? "bad" : "good"}` }, worker.error ? "in trouble" : worker.alive ? "working" : "not seen")],
    ["Last seen", worker.seen_seconds_ago === null ? "never" : `${duration(worker.seen_seconds_ago)} ago`],
    ["One turn takes", duration(worker.turn_seconds)],
    ["Turns", number(worker.turns ?? 0)],
    ["Answers not yet fitted", number(worker.behind ?? 0)],
    ["Queries ready", number(ready)],
  ];
  const list = html("dl", { class: "facts" }, ...facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
  const note = worker.error
    ? html("p", { class: "notice bad" }, worker.error)
    : late
      ? html("p", { class: "notice warn" }, "Participants get random questions until the worker is back. No answer is lost.")
      : null;
  byId("health").replaceChildren(...(note ? [note] : []), list);
}

/** Items that did not load on participants' pages. */
export function showUnshown(unshown, names) {
  const box = byId("unshown");
  box.hidden = unshown.length === 0;
  const times = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
  const listed = unshown.map(({ item, times: count, participants }) => `${names[item]} (${times(count, "time")}, ${times(participants, "participant")})`);
  box.textContent = listed.length ? `Items that did not load for participants: ${listed.join(", ")}. Their queries were replaced by others, and no answer was stored.` : "";
}

export function showShares(shares) {
  const names = { active: "chosen by the model", random: "at random, on purpose", fallback: "at random, queue empty", check: "checks and repeats" };
  const total = Object.values(shares).reduce((sum, value) => sum + value, 0);
  const rows = Object.entries(names)
    .filter(([key]) => shares[key] !== undefined)
    .map(([key, name], k) => ({ name, value: shares[key], color: k + 1, text: total ? percent(shares[key] / total) : "–" }));
  namedBars(byId("shares"), { rows: total ? rows : [], nothing: "No answer yet." });
}

function participantNote(summary, quality) {
  const declined = summary.declined ? `${number(summary.declined)} declined` : "";
  return [quality.flagged ? `${number(quality.flagged)} to look at` : "", declined].filter(Boolean).join(", ");
}
