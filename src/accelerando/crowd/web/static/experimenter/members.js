// Who has a role in an experiment: owners give and take them.

import { html } from "../charts/svg.js";
import { showProblem } from "./dialogs.js";
import { request } from "./request.js";

const byId = (id) => document.getElementById(id);

/** Let the dialog "members" show and change the roles of an experiment. */
export function manageMembers(api) {
  const notice = byId("member-problem");

  async function change(act) {
    notice.hidden = true;
    try {
      draw((await act()).members);
    } catch (error) {
      showProblem(notice, error);
    }
  }

  const give = (account, role) => change(() => request("PUT", `${api}/members/${encodeURIComponent(account)}`, { role }));

  function draw(members) {
    const rows = members.map(({ account, role }) => {
      const take = html("button", { type: "button", class: "button small", "aria-label": `Remove ${account}` }, "Remove");
      take.addEventListener("click", () => give(account, null));
      return html("tr", {}, html("td", {}, account), html("td", {}, role), html("td", { class: "acts" }, take));
    });
    const head = html("tr", {}, html("th", { scope: "col" }, "Account"), html("th", { scope: "col" }, "Role"), html("th", {}, html("span", { class: "visually-hidden" }, "Actions")));
    byId("members-list").replaceChildren(rows.length ? html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows)) : html("p", { class: "muted" }, "Only administrators."));
  }

  byId("show-members").addEventListener("click", () => change(() => request("GET", `${api}/members`)));
  byId("member-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await give(byId("member-name").value.trim(), byId("member-role").value);
  });
}
