// The table of participants: sort by any column, block and unblock.

import { duration, number, percent } from "../charts/scale.js";
import { html } from "../charts/svg.js";

const FLAGS = {
  fast: "very fast",
  one_sided: "one side",
  failed_checks: "failed checks",
  inconsistent: "inconsistent",
};
const share = (part) => (part.asked ? part[part.passed === undefined ? "agreed" : "passed"] / part.asked : null);
const fraction = (part, done) => (part?.asked ? `${number(done)} of ${number(part.asked)}` : "–");
const when = (unix) => (unix ? new Date(unix * 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" }) : "–");

const COLUMNS = [
  { title: "Participant", value: (p) => p.participant, text: (p) => p.participant },
  { title: "Noticed", flag: true, value: (p) => p.flags.length, text: (p) => p.flags.map((flag) => FLAGS[flag] ?? flag).join(", ") },
  { title: "Answers", number: true, value: (p) => p.answered, text: (p) => number(p.answered) },
  { title: "Skips", number: true, value: (p) => p.skipped, text: (p) => number(p.skipped) },
  { title: "Median time", number: true, value: (p) => p.median_response_time, text: (p) => duration(p.median_response_time) },
  { title: "Left", number: true, value: (p) => p.left_share, text: (p) => (p.left_share === null ? "–" : percent(p.left_share)) },
  { title: "Checks", number: true, value: (p) => share(p.checks), text: (p) => fraction(p.checks, p.checks.passed) },
  { title: "Repeats", number: true, value: (p) => share(p.repeats), text: (p) => fraction(p.repeats, p.repeats.agreed) },
  { title: "Fits embedding", number: true, value: (p) => p.agreement, text: (p) => (p.agreement === null ? "–" : percent(p.agreement)) },
  // What the joint fit says: 100 % attentive, 0 % guessing, below 0 the other answer than they mean.
  { title: "Reliability", number: true, value: (p) => p.reliability?.[0] ?? null, text: (p) => (p.reliability ? `${percent(p.reliability[0])} (${percent(p.reliability[1])} to ${percent(p.reliability[2])})` : "–") },
  { title: "Last answer", number: true, value: (p) => p.last, text: (p) => when(p.last) },
];

const MOST_ROWS = 200; // a page of thousands would crawl; the download has them all

/**
 * Draw the table into `container`; `act(participant, "block" | "unblock" | "forget")` is called by its buttons.
 * `allowed` lists what the experimenter's role may do: "block", "delete".
 */
export class PeopleTable {
  constructor(container, act, allowed) {
    this.container = container;
    this.act = act;
    this.allowed = allowed;
    this.order = { column: 10, down: true };
    this.people = [];
  }

  /** Draw if anything is new; returns a sentence about what is not shown. */
  update(people) {
    const text = JSON.stringify(people);
    if (text !== this.text) {
      this.text = text;
      this.people = people;
      this.#draw();
    }
    return people.length > MOST_ROWS ? `${MOST_ROWS} of ${number(people.length)}; participants.csv has all` : "";
  }

  #sorted() {
    const { column, down } = this.order;
    const of = COLUMNS[column].value;
    const low = (value) => value === null || value === undefined;
    return [...this.people].sort((a, b) => {
      const [x, y] = [of(a), of(b)];
      if (low(x) || low(y)) return Number(low(x)) - Number(low(y)); // nothing to compare goes last
      const order = typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
      return down ? -order : order;
    });
  }

  #draw() {
    if (this.people.length === 0) {
      this.container.replaceChildren(html("p", { class: "chart-empty" }, "Nobody has taken part yet. Send the link above to somebody, or open it yourself."));
      return;
    }
    const focused = this.container.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const head = html("tr", {}, ...COLUMNS.map((column, k) => this.#heading(column, k)), html("th", {}, html("span", { class: "visually-hidden" }, "Actions")));
    const rows = this.#sorted().slice(0, MOST_ROWS).map((person) => this.#row(person));
    const top = this.container.scrollTop;
    this.container.replaceChildren(html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows)));
    this.container.scrollTop = top;
    if (focused) this.container.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  #heading(column, k) {
    const press = html("button", { type: "button", "data-focus": `column ${k}` }, column.title);
    press.addEventListener("click", () => {
      this.order = { column: k, down: this.order.column === k ? !this.order.down : Boolean(column.number || column.flag) };
      this.#draw();
    });
    const sorted = this.order.column === k ? (this.order.down ? "descending" : "ascending") : null;
    return html("th", { class: column.number ? "number" : null, "aria-sort": sorted, scope: "col" }, press);
  }

  #row(person) {
    const blocked = person.state === "blocked";
    const word = blocked ? "Unblock" : "Block";
    const buttons = [
      this.allowed.includes("block") ? this.#button(person, word, word.toLowerCase()) : null,
      this.allowed.includes("delete") ? this.#button(person, "Delete", "forget") : null,
    ];
    const cells = COLUMNS.map((column) => html("td", { class: column.number ? "number" : column.flag ? "flag" : null }, column.text(person)));
    return html("tr", { class: blocked ? "blocked" : null }, ...cells, html("td", { class: "acts" }, ...buttons));
  }

  #button(person, word, what) {
    const name = `${word} ${person.participant}`;
    const press = html("button", { type: "button", class: "button small", "aria-label": name, "data-focus": `${what} ${person.id}` }, word);
    press.addEventListener("click", () => {
      this.text = null; // the next list is drawn in any case
      this.act(person, what);
    });
    return press;
  }
}
