// Completion codes: which of a list are valid, and whose they are.

import { html } from "../charts/svg.js";
import { showProblem } from "./dialogs.js";
import { request } from "./request.js";

const byId = (id) => document.getElementById(id);
const WORDS = { valid: "valid", used: "used before", twice: "twice in this list", unfinished: "session has not ended", unknown: "unknown" };

/** Let the dialog "codes" check a list, and use the valid ones up. */
export function checkCodes(api) {
  byId("codes-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const use = event.submitter?.value === "use";
    byId("codes-problem").hidden = true;
    try {
      const codes = byId("codes-list").value.split("\n").filter((line) => line.trim());
      draw((await request("POST", `${api}/codes`, { codes, use })).codes, use);
    } catch (error) {
      showProblem(byId("codes-problem"), error);
    }
  });
}

function draw(found, use) {
  const head = html("tr", {}, ...["Line", "Code is", "Participant", "Session", "Answers"].map((word) => html("th", { scope: "col" }, word)));
  const rows = found.map((one) => {
    const status = use && one.status === "valid" ? "valid, used up now" : WORDS[one.status];
    const when = one.status === "used" ? ` (${new Date(one.used * 1000).toLocaleString()})` : "";
    return html("tr", {}, ...[one.line, `${status}${when}`, one.participant ?? "", one.outcome ?? "", one.answered ?? ""].map((cell) => html("td", {}, String(cell))));
  });
  byId("codes-found").replaceChildren(html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows)));
}
