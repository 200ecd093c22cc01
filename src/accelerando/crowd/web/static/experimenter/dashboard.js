// The dashboard: asks the server for news and draws them.

import { EmbeddingMap } from "../charts/map.js";
import { number, percent } from "../charts/scale.js";
import { html } from "../charts/svg.js";
import { checkCodes } from "./codes.js";
import { ready, showProblem } from "./dialogs.js";
import { manageMembers } from "./members.js";
import { drawAccuracy, drawActivity, drawArrivals, drawCoverage, drawSamplers, drawTimes, showHealth, showNumbers, showShares, showUnshown } from "./panels.js";
import { PeopleTable } from "./people.js";
import { data, request } from "./request.js";

const EVERY_MS = 2_000;
const PEOPLE_EVERY = 3; // turns
const byId = (id) => document.getElementById(id);
const { api } = data.experiment;

const page = { summary: data.experiment, map: null, embedding: null, version: null, turn: 0, axes: [0, 1], arrivals: null };
const people = new PeopleTable(byId("people"), async (person, what) => {
  const address = `${api}/participants/${encodeURIComponent(person.id)}`;
  if (what === "forget") {
    byId("forget-who").textContent = person.participant;
    byId("forget-now").onclick = async () => {
      byId("forget").close();
      await attempt(() => request("DELETE", address));
      await refreshPeople();
    };
    byId("forget").showModal();
    return;
  }
  await attempt(() => request("POST", `${address}/${what}`));
  await refreshPeople();
}, { viewer: [], editor: ["block"], owner: ["block", "delete"] }[data.role]);

// --- actions ----------------------------------------------------------------------------------------

const link = byId("participant-link");
link.value = new URL(data.experiment.participant_url, location.href).href;
byId("open-link").href = link.value;
byId("copy-link").addEventListener("click", async (event) => {
  link.select();
  try {
    await navigator.clipboard.writeText(link.value);
  } catch {
    document.execCommand("copy"); // plain http: the older way
  }
  event.target.textContent = "Copied";
});

byId("pause")?.addEventListener("click", async () => {
  const what = page.summary.state === "running" ? "pause" : "resume";
  byId("pause").disabled = true;
  const summary = await attempt(() => request("POST", `${api}/${what}`));
  byId("pause").disabled = false;
  if (summary) showSummary(summary);
});

if (data.role !== "viewer") checkCodes(api);
if (data.role === "owner") manageMembers(api);

const typed = byId("delete-name");
typed.addEventListener("input", () => {
  byId("delete-now").disabled = typed.value !== data.experiment.name;
});
byId("delete-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await request("DELETE", api, { confirm: typed.value });
    location.assign(document.querySelector(".brand").href);
  } catch (error) {
    showProblem(byId("delete-problem"), error);
  }
});

for (const [k, id] of ["axis-x", "axis-y"].entries()) {
  byId(id).addEventListener("change", (event) => {
    page.axes[k] = Number(event.target.value);
    page.map.points = null; // other axes, another picture: nothing to turn it onto
    drawMap();
  });
}

/** Do something; what goes wrong is shown above the numbers. */
async function attempt(act) {
  try {
    const result = await act();
    byId("trouble").hidden = true;
    return result;
  } catch (error) {
    showProblem(byId("trouble"), error);
    return null;
  }
}

// --- news -------------------------------------------------------------------------------------------

async function refresh() {
  if (!document.hidden || page.turn === 0) {
    const news = await attempt(() => request("GET", `${api}/dashboard`));
    if (news) {
      draw(news);
      if (news.embedding_version !== null && news.embedding_version !== page.version) await refreshMap(news.embedding_version);
      else if (page.map) noteMap();
    }
    if (page.turn % PEOPLE_EVERY === 0) await refreshPeople();
    page.turn += 1;
  }
  setTimeout(refresh, EVERY_MS);
}

async function refreshPeople() {
  const found = await attempt(() => request("GET", `${api}/participants`));
  if (!found || !page.news) return;
  byId("people-note").textContent = people.update(found.participants);
  page.arrivals = found.participants.map((person) => person.started);
  panel("arrivals", page.arrivals, (times) => drawArrivals(times, page.news.activity));
}

async function refreshMap(version) {
  let found;
  try {
    found = await request("GET", `${api}/embedding`);
  } catch (error) {
    if (error.status !== 404) showProblem(byId("trouble"), error);
    return;
  }
  page.version = version;
  page.embedding = found;
  if (!page.map) {
    const items = found.items.map((item, index) => ({ index, label: item.text, thumbnail: item.kind === "image" ? item.src : null }));
    page.map = new EmbeddingMap(byId("map"), items, {
      words: { label: "Map of the items. Arrow keys move it, plus and minus zoom, 0 shows all.", zoomIn: "Zoom in", zoomOut: "Zoom out", reset: "Show all" },
    });
  }
  offerAxes(found.positions[0].length);
  drawMap();
}

/** Let people choose which dimensions they see; the answers may decide how many there are. */
function offerAxes(dimensions) {
  if (dimensions === page.dimensions) return;
  page.dimensions = dimensions;
  page.axes = [0, 1];
  byId("axes").hidden = dimensions < 3;
  if (dimensions < 3) return;
  for (const [k, id] of ["axis-x", "axis-y"].entries()) {
    byId(id).replaceChildren(...Array.from({ length: dimensions }, (_, d) => html("option", { value: d, selected: d === page.axes[k] }, `dimension ${d + 1}`)));
  }
}

function drawMap() {
  const [a, b] = page.axes;
  noteMap();
  tellModel();
  page.map.update(page.embedding.positions.map((place) => [place[a], place[b] ?? 0]), itemNotes(), page.embedding.uncertainty);
}

/** Which model is used, how much is chosen, and which items have no position; each with its reason. */
function tellModel() {
  const { model, reason, guard, uncertainty, items } = page.embedding;
  const never = uncertainty ? items.filter((_, k) => uncertainty[k] === null).map((item) => item.text) : [];
  byId("model").textContent = model ? `Model: ${reason.startsWith(model) ? reason : `${model}, ${reason}.`}` : "";
  byId("guard").textContent = guard ? `Share of chosen queries: ${guard.begun ? percent(guard.share) : "0 %"} of what the sampler may choose. ${guard.reason}` : "";
  byId("never").textContent = never.length ? `Not on the map, because nobody was asked about them: ${never.join(", ")}.` : "";
}

function noteMap() {
  byId("map-note").textContent = `from ${number(page.embedding.answers)} answers`;
  page.map.notes = itemNotes();
}

const itemNames = () => page.news.items.queries.map((_, k) => page.embedding?.items[k].text ?? `item ${k}`);
const itemNotes = () =>
  page.news.items.queries.map((times, k) => {
    const unsure = page.embedding?.uncertainty?.[k];
    return `asked about ${number(times)} times${unsure ? `, position ± ${number(unsure)}` : ""}`;
  });

// --- drawing ----------------------------------------------------------------------------------------

const drawn = new Map(); // panel → what it shows, as text

/** Draw a panel if it would look different: a picture under the pointer should stay. */
function panel(id, content, paint) {
  const text = JSON.stringify(content);
  if (drawn.get(id) === text) return;
  drawn.set(id, text);
  paint(content);
}

function draw(news) {
  page.news = news;
  showSummary(news.summary);
  byId("updated").textContent = `updated ${new Date(news.now * 1000).toLocaleTimeString()}`;
  showNumbers(news);
  panel("accuracy", news.accuracy, drawAccuracy);
  panel("activity", news.activity, (activity) => drawActivity("activity", activity, "answers", `${number(news.rate_per_minute)} per minute`));
  panel("response-time", news.response_time, (times) => drawTimes("response-time", times));
  panel("latency", news.network_latency, (times) => drawTimes("latency", times));
  panel("coverage", [news.items, news.coverage], ([items, coverage]) => drawCoverage(items, coverage, itemNames()));
  panel("samplers", news.samplers, drawSamplers);
  panel("unshown", [news.unshown, news.items.names], ([unshown, names]) => showUnshown(unshown, names));
  panel("shares", news.active_share, showShares);
  showHealth(news);
}

// Not only the window changes a panel: a longer sentence below a chart leaves less for the drawing.
let resized = null;
const redraw = new ResizeObserver(() => {
  clearTimeout(resized);
  resized = setTimeout(() => {
    drawn.clear();
    if (page.news) draw(page.news);
    if (page.arrivals) drawArrivals(page.arrivals, page.news.activity);
  }, 150);
});
for (const plot of document.querySelectorAll(".panel .plot:not(.map-place)")) redraw.observe(plot);

function showSummary(summary) {
  page.summary = summary;
  const running = summary.state === "running";
  byId("state").textContent = summary.state;
  byId("state").className = `state ${running ? "good" : "warn"}`;
  if (byId("pause")) byId("pause").textContent = running ? "Pause" : "Resume";
}

ready();
refresh();
