// Make an experiment from pictures and a few words, or from a settings file; restore one.

import { html } from "../charts/svg.js";
import { ready, showProblem } from "./dialogs.js";
import { Problem, request } from "./request.js";

const API = document.querySelector('link[rel="stylesheet"]').href.replace(/static\/.*$/, "api/v1");
const byId = (id) => document.getElementById(id);

const items = byId("new-items");
items.addEventListener("change", () => {
  const size = [...items.files].reduce((sum, file) => sum + file.size, 0);
  byId("new-items-count").textContent = items.files.length ? `${items.files.length} files, ${(size / 1e6).toFixed(1)} MB` : "";
});

byId("new-form").addEventListener("submit", (event) => {
  event.preventDefault();
  submit(event.target, byId("new-problems"), byId("new-progress"), `${API}/experiments`, newExperiment);
});

byId("restore-form").addEventListener("submit", (event) => {
  event.preventDefault();
  submit(event.target, byId("restore-problems"), byId("restore-progress"), `${API}/restore`, restoration);
});

async function submit(form, notice, progress, url, compose) {
  const send = form.querySelector(".primary");
  notice.hidden = true;
  send.disabled = true;
  progress.textContent = "Uploading…";
  try {
    const made = await request("POST", url, compose(form));
    if (made.notices?.length) showNotices(form, progress, made);
    else location.assign(made.dashboard_url);
  } catch (error) {
    showProblem(notice, error);
    send.disabled = false;
    progress.textContent = "";
  }
}

/** The experiment is made; say what differs from its files before you continue. */
function showNotices(form, progress, made) {
  progress.textContent = "";
  const list = html("ul", {}, ...made.notices.map((notice) => html("li", {}, notice)));
  const next = html("a", { class: "button primary", href: made.dashboard_url }, "Open the dashboard");
  const notice = html("div", { class: "notice warn", role: "status", tabindex: "-1" }, html("p", {}, "The experiment is made. Please read:"), list, html("p", {}, next));
  form.replaceChildren(notice);
  notice.focus();
}

function newExperiment(form) {
  const fields = new FormData(form);
  const sent = new FormData();
  const settings = fields.get("settings");
  if (settings?.size > 0) sent.append("settings", settings);
  else sent.append("settings", new File([JSON.stringify(written(fields), null, 2)], "experiment.yaml", { type: "application/yaml" }));
  for (const file of fields.getAll("items")) if (file.size > 0) sent.append("items", file);
  if (settings?.size > 0 || sent.getAll("items").length > 0) return sent;
  throw new Problem(0, "Choose the items first: at least three pictures, or a ZIP, or a CSV list.", []);
}

/** The settings that the form's fields say; JSON is YAML, too. */
function written(fields) {
  const title = fields.get("title").trim() || "Which ones are alike?";
  const completion = {};
  if (fields.get("code").trim()) completion.code = fields.get("code").trim();
  if (fields.get("redirect").trim()) completion.redirect = fields.get("redirect").trim();
  const settings = {
    name: slug(title),
    title,
    instructions: fields.get("instructions"),
    skip: fields.get("skip") === "yes",
    participants: { answers: Number(fields.get("answers")) || 50 },
  };
  if (Object.keys(completion).length) settings.completion = { done: completion };
  if (fields.get("consent").trim()) settings.consent = { text: fields.get("consent") };
  return settings;
}

/** A name for links: "Wie ähnlich?" becomes "wie-ahnlich", and two experiments with one title differ. */
function slug(title) {
  const plain = title.normalize("NFKD").replace(/[̀-ͯ]/g, "").toLowerCase();
  const words = plain.replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 40).replace(/-+$/, "");
  const taken = new Set([...document.querySelectorAll(".experiments .muted")].map((one) => one.textContent.trim()));
  let name = words || "experiment";
  for (let k = 2; taken.has(name); k += 1) name = `${words || "experiment"}-${k}`;
  return name;
}

function restoration(form) {
  const fields = new FormData(form);
  const sent = new FormData();
  if (!fields.get("archive")?.size) throw new Problem(0, "Choose the archive first: the ZIP that was downloaded from a dashboard.", []);
  sent.append("archive", fields.get("archive"));
  if (fields.get("name").trim()) sent.append("name", fields.get("name").trim());
  return sent;
}

ready();
