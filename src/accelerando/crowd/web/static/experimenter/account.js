// The account: sessions, tokens of programs, codes of an app and, for administrators, other accounts.

import { html } from "../charts/svg.js";
import { ready, showProblem } from "./dialogs.js";
import { data, request } from "./request.js";

const API = document.querySelector('link[rel="stylesheet"]').href.replace(/static\/.*$/, "api/v1");
const byId = (id) => document.getElementById(id);
const when = (unix) => new Date(unix * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

/** Do something; what goes wrong is shown, and null comes back. */
async function attempt(act) {
  byId("trouble").hidden = true;
  try {
    return (await act()) ?? {};
  } catch (error) {
    showProblem(byId("trouble"), error);
    return null;
  }
}

function table(place, titles, rows, empty) {
  const head = html("tr", {}, ...titles.map((title) => html("th", { scope: "col" }, title)), html("th", {}, html("span", { class: "visually-hidden" }, "Actions")));
  const body = rows.map(({ cells, act }) => html("tr", {}, ...cells.map((cell) => html("td", {}, cell)), html("td", { class: "acts" }, act)));
  byId(place).replaceChildren(rows.length ? html("table", {}, html("thead", {}, head), html("tbody", {}, ...body)) : html("p", { class: "muted" }, empty));
}

/** A button that deletes something and then lists what is left. */
function remover(word, name, url, list) {
  const press = html("button", { type: "button", class: "button small", "aria-label": `${word} ${name}` }, word);
  press.addEventListener("click", async () => {
    if (await attempt(() => request("DELETE", url))) await list();
  });
  return press;
}

function onSubmit(id, act) {
  byId(id)?.addEventListener("submit", async (event) => {
    event.preventDefault();
    const send = event.target.querySelector(".primary");
    send.disabled = true;
    await act(event.target);
    send.disabled = false;
  });
}

// --- sessions ---------------------------------------------------------------------------------------

async function listSessions() {
  const found = await attempt(() => request("GET", `${API}/account/sessions`));
  if (!found) return;
  table("sessions", ["Signed in", "Last used", "Ends"], found.sessions.map((one) => ({
    cells: [one.current ? `${when(one.created)} (this one)` : when(one.created), when(one.seen), when(one.expires)],
    act: one.current ? null : remover("End", `the session of ${when(one.created)}`, `${API}/account/sessions/${one.id}`, listSessions),
  })), "None.");
}

// --- tokens -----------------------------------------------------------------------------------------

async function listTokens() {
  const found = await attempt(() => request("GET", `${API}/account/tokens`));
  if (!found) return;
  table("tokens", ["Name", "May", "Experiment", "Ends"], found.tokens.map((one) => ({
    cells: [one.name, one.scope, one.experiment ?? "all", when(one.expires)],
    act: remover("Revoke", one.name, `${API}/account/tokens/${one.id}`, listTokens),
  })), "No program has a token.");
}

onSubmit("token-form", async (form) => {
  const body = {
    name: byId("token-name").value,
    scope: byId("token-scope").value,
    experiment: byId("token-experiment").value.trim() || null,
    days: Number(byId("token-days").value),
  };
  const made = await attempt(() => request("POST", `${API}/account/tokens`, body));
  byId("token-made").hidden = !made;
  if (!made) return;
  byId("token-secret").textContent = made.token;
  form.reset();
  await listTokens();
});

// --- codes of an app --------------------------------------------------------------------------------

byId("codes-propose")?.addEventListener("click", async () => {
  const made = await attempt(() => request("POST", `${API}/account/totp`));
  if (!made) return;
  byId("codes-key").textContent = made.key;
  byId("codes-uri").href = made.uri;
  byId("codes-form").hidden = false;
  byId("codes-propose").hidden = true;
});

onSubmit("codes-form", async () => {
  const body = { present: byId("codes-password").value, code: byId("codes-code").value };
  const done = await attempt(() =>
    data.codes ? request("DELETE", `${API}/account/totp`, body) : request("PUT", `${API}/account/totp`, { ...body, key: byId("codes-key").textContent }));
  if (done) location.reload();
});

// --- other accounts ---------------------------------------------------------------------------------

async function listAccounts() {
  const found = await attempt(() => request("GET", `${API}/accounts`));
  if (!found) return;
  table("accounts", ["Name", "Kind", "Codes", "Made"], found.accounts.map((one) => ({
    cells: [one.name, one.admin ? "administrator" : "experimenter", one.totp ? "yes" : "no", when(one.created)],
    act: one.name === data.experimenter ? null : remover("Delete", one.name, `${API}/accounts/${encodeURIComponent(one.name)}`, listAccounts),
  })), "None.");
}

onSubmit("account-form", async (form) => {
  const body = { name: byId("account-name").value.trim(), password: byId("account-password").value, admin: byId("account-admin").checked };
  if (!(await attempt(() => request("POST", `${API}/accounts`, body)))) return;
  form.reset();
  await listAccounts();
});

ready();
await listSessions();
await listTokens();
if (data.admin) await listAccounts();
