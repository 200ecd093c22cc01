// Buttons with data-open show the dialog of that id, those with data-close close the one around them.

import { html } from "../charts/svg.js";

for (const opener of document.querySelectorAll("[data-open]")) {
  opener.addEventListener("click", () => document.getElementById(opener.dataset.open).showModal());
}
for (const closer of document.querySelectorAll("dialog [data-close]")) {
  closer.addEventListener("click", () => closer.closest("dialog").close());
}

/** Let the page be used: its buttons wait for the scripts, lest an early click be lost. */
export function ready() {
  for (const waiting of document.querySelectorAll("[data-waits]")) waiting.disabled = false;
}

const place = ({ file, line, key }) => [file, line ? `line ${line}` : "", key].filter(Boolean).join(", ");

/** Write what went wrong into a notice: a sentence, and every problem with its place and remedy. */
export function showProblem(notice, error) {
  const list = html("ul", { class: "problems" });
  for (const problem of error.problems ?? []) {
    const where = place(problem);
    list.append(html("li", {}, where ? html("strong", {}, `${where}: `) : "", `${problem.message} ${problem.remedy ?? ""}`));
  }
  // The list says it all; the sentence repeats it when it has several lines.
  notice.replaceChildren(html("p", {}, error.message.split("\n")[0]), ...(list.childElementCount ? [list] : []));
  notice.hidden = false;
  notice.scrollIntoView({ block: "nearest" });
}
