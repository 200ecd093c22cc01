// One question: a head, two choices, and the time it took.

import { prepare, show, spoken } from "./items.js";
import { button, make, prose, waiting } from "./reading.js";

// Nobody compares pictures this fast: an earlier press is the rest of a double click or a held key.
const TOO_SOON_MS = 250;
// An empty question for longer than this looks broken; the page then says that it is loading.
const SLOW_MS = 1_000;

const painted = () =>
  new Promise((resolve) => {
    // Hidden tabs paint nothing; there the clock starts when they are looked at.
    if (!document.hidden) requestAnimationFrame(() => requestAnimationFrame(resolve));
    else document.addEventListener("visibilitychange", () => resolve(), { once: true });
  });

const slot = (markup) => (markup ? [prose(markup)] : []);

export class Question {
  /**
   * `choose(query, side, seconds)` is called once per query; side is "left", "right" or null for a skip. For a query
   * that cannot be shown, `broken(query, items)` is called in its place, with the numbers of its missing items.
   */
  constructor(stage, { texts, slots, skip, keyboard, foot }, choose, broken) {
    this.stage = stage;
    this.texts = texts;
    this.choose = choose;
    this.broken = broken;
    this.query = null; // the query that may be answered now
    this.since = 0;
    this.root = make("section", "question");
    this.root.setAttribute("aria-label", texts.question);
    this.prompt = make("div", "prompt", ...slot(slots?.top), make("p", "", texts.question));
    this.frame = make("div", "frame");
    this.head = make("div", "head", this.frame);
    this.head.setAttribute("role", "group");
    this.sides = { left: this.#side("left", keyboard && "←"), right: this.#side("right", keyboard && "→") };
    this.choices = make("div", "choices", this.sides.left.card, this.sides.right.card);
    this.below = make("div", "below");
    if (skip) this.below.append(button(texts.skip, (event) => this.#pick(null, event.timeStamp), "button small skip"));
    this.below.append(...slot(slots?.bottom));
    const between = make("div", "between small", ...(slots?.middle ? slot(slots.middle) : [texts.choose]));
    this.root.append(this.prompt, this.head, between, this.choices, this.below);
    if (foot) this.root.append(foot);
    if (keyboard) addEventListener("keydown", (event) => this.#key(event));
  }

  /** Show a query as soon as its pictures are there; the clock starts when they are on the screen. */
  async ask(query) {
    this.query = null;
    this.coming = query;
    this.root.classList.add("blank");
    const slow = setTimeout(() => this.coming === query && waiting(this.stage, this.texts.loading), SLOW_MS);
    const missing = await prepare(query);
    clearTimeout(slow);
    if (this.coming !== query) return; // the page has moved on
    if (missing.length > 0) {
      this.#lack(query, missing);
      return;
    }
    this.#fill(query);
    if (!this.root.isConnected) this.stage.replaceChildren(this.root);
    this.root.classList.remove("blank");
    await painted();
    if (this.coming !== query) return;
    this.since = performance.now();
    this.query = query;
    this.root.dataset.query = query.id; // tests and custom styles look here
  }

  /** Take the question off the screen. */
  leave() {
    this.query = null;
    this.coming = null;
    delete this.root.dataset.query;
    this.root.remove();
  }

  /** A card to choose; style sheets of Salmon call it "answer". */
  #side(side, key) {
    const card = make("button", `choice ${side} answer`);
    card.type = "button";
    card.addEventListener("click", (event) => this.#pick(side, event.timeStamp));
    return { card, key };
  }

  /** Take a query off the screen that lacks some of its items, unless it has been answered. */
  #lack(query, items) {
    if (this.coming !== query) return;
    this.leave();
    this.broken(query, items);
  }

  #fill(query) {
    const shown = (item) => show(item, () => this.#lack(query, [item.item]));
    this.frame.replaceChildren(shown(query.head));
    this.head.setAttribute("aria-label", `${this.texts.target}: ${spoken(query.head)}`);
    for (const side of ["left", "right"]) {
      const item = query[side];
      const { card, key } = this.sides[side];
      card.classList.remove("chosen");
      const hint = key ? make("span", "key", make("kbd", "", key)) : null;
      if (hint) hint.setAttribute("aria-hidden", "true");
      const replacement = this.#holder(side, item, card);
      replacement.replaceChildren(shown(item), ...this.#chooser(side, item), ...(hint ? [hint] : []));
    }
  }

  /** The controls of a sound must not be inside a button, so its card is a group. */
  #holder(side, item, card) {
    const tag = item.kind === "audio" ? "DIV" : "BUTTON";
    let holder = card;
    if (card.tagName !== tag) {
      holder = tag === "DIV" ? make("div", `choice ${side} answer`) : this.#side(side).card;
      card.replaceWith(holder);
      this.sides[side].card = holder;
    }
    holder.setAttribute("aria-label", `${this.texts[side]}: ${spoken(item)}`);
    if (tag === "DIV") holder.setAttribute("role", "group");
    return holder;
  }

  #chooser(side, item) {
    if (item.kind !== "audio") return [];
    return [button(this.texts[side], (event) => this.#pick(side, event.timeStamp), "button play")];
  }

  #key(event) {
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.target instanceof HTMLMediaElement) return; // arrows seek in a sound
    const side = { ArrowLeft: "left", ArrowRight: "right" }[event.key];
    if (!side || !this.root.isConnected) return;
    event.preventDefault();
    this.#pick(side, event.timeStamp);
  }

  #pick(side, at) {
    const { query } = this;
    // Browsers may round an event's time to before the clock was read; never negative.
    const elapsed = Math.max(0, at - this.since);
    if (!query || elapsed < TOO_SOON_MS) return;
    this.query = null;
    this.coming = null;
    delete this.root.dataset.query;
    if (side) this.sides[side].card.classList.add("chosen");
    this.choose(query, side, elapsed / 1000);
  }
}
