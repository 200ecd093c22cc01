// The live embedding: items as pictures or words in the plane; hover, zoom, pan, by mouse, touch or keys.

import { alignTo, normalize } from "./align.js";
import { tooltip } from "./frame.js";
import { html, svg } from "./svg.js";

const MOVE_MS = 500; // how long points take to their new places
const [FARTHEST, NEAREST] = [0.5, 40];
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Root of the mean squared distance of the points from their center. */
function spread(points) {
  const mean = [0, 1].map((axis) => points.reduce((sum, point) => sum + point[axis], 0) / points.length);
  return Math.sqrt(points.reduce((sum, point) => sum + (point[0] - mean[0]) ** 2 + (point[1] - mean[1]) ** 2, 0) / points.length);
}

const short = (text, length = 22) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/**
 * A map of `items` ([{index, label, thumbnail}]); call `update(positions, notes, uncertainty)` whenever
 * there is a new embedding, with one [x, y] and one sentence per item, and the standard deviation of its
 * position: the radius of a ring. Items whose uncertainty is null were never asked about and are hidden.
 */
export class EmbeddingMap {
  constructor(container, items, { words }) {
    this.items = items;
    this.container = container;
    this.words = words;
    this.view = { zoom: 1, x: 0, y: 0 };
    this.points = null;
    this.shown = null;
    this.size = this.#pointSize();
    this.layer = svg("g");
    this.root = svg("svg", { class: "chart map", role: "group", tabindex: "0", "aria-label": words.label });
    this.root.append(this.layer);
    container.replaceChildren(this.root, this.#buttons());
    this.tip = tooltip(container);
    this.marks = items.map((item) => this.#mark(item));
    this.layer.append(...this.marks);
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(container);
  }

  /** Move to a new embedding, turned so that it fits the one on the screen. */
  update(positions, notes, uncertainty = null) {
    this.notes = notes;
    const target = normalize(positions);
    const scale = spread(target) / (spread(positions) || 1);
    this.rings = uncertainty?.map((radius) => (radius === null ? null : radius * scale)) ?? null;
    const next = this.points ? alignTo(this.points, target) : target;
    const from = this.shown ?? next;
    this.points = next;
    cancelAnimationFrame(this.frame);
    if (still() || from === next || document.hidden) {
      this.shown = next;
      this.draw();
      return;
    }
    const start = performance.now();
    const move = (now) => {
      const t = Math.min(1, Math.max(0, (now - start) / MOVE_MS));
      const s = t * t * (3 - 2 * t);
      this.shown = next.map(([x, y], k) => [from[k][0] + s * (x - from[k][0]), from[k][1] + s * (y - from[k][1])]);
      this.draw();
      if (t < 1) this.frame = requestAnimationFrame(move);
    };
    this.frame = requestAnimationFrame(move);
  }

  /** Back to all items in view. */
  reset() {
    this.view = { zoom: 1, x: 0, y: 0 };
    this.draw();
  }

  draw() {
    if (!this.shown) return;
    const { width, height } = this.#box();
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const unit = this.#unit() * this.view.zoom;
    this.marks.forEach((mark, k) => {
      const [x, y] = this.shown[k];
      const ring = this.rings?.[k];
      mark.toggleAttribute("hidden", ring === null);
      mark.querySelector(".ring").setAttribute("r", (unit * (ring ?? 0)).toFixed(1));
      mark.setAttribute("transform", `translate(${(width / 2 + this.view.x + unit * x).toFixed(1)} ${(height / 2 + this.view.y - unit * y).toFixed(1)})`);
    });
  }

  #box() {
    return { width: this.container.clientWidth || 600, height: this.container.clientHeight || 440 };
  }

  /** Pixels per unit at zoom one: all points inside, with room for their pictures. */
  #unit() {
    const { width, height } = this.#box();
    const reach = (axis) => Math.max(...this.points.map((p) => Math.abs(p[axis])), 1e-6);
    const room = this.size / 2 + 12;
    return Math.min((width / 2 - room) / reach(0), (height / 2 - room) / reach(1));
  }

  #pointSize() {
    return Math.round(Math.max(18, Math.min(52, 300 / Math.sqrt(this.items.length))));
  }

  #mark(item) {
    const half = this.size / 2;
    const mark = svg("g", { class: "point" });
    mark.append(svg("circle", { class: "ring", r: 0 }));
    if (item.swatch) {
      mark.append(svg("circle", { class: "picture", r: half * 0.7, fill: item.swatch }));
    } else if (item.thumbnail) {
      mark.append(
        svg("rect", { class: "halo", x: -half - 1, y: -half - 1, width: this.size + 2, height: this.size + 2, rx: 4 }),
        svg("image", { class: "picture", href: item.thumbnail, x: -half, y: -half, width: this.size, height: this.size, preserveAspectRatio: "xMidYMid meet" }),
      );
    } else {
      mark.append(svg("circle", { class: "spot", r: 4 }), svg("text", { y: -8, "text-anchor": "middle" }, short(item.label, 16)));
    }
    mark.addEventListener("pointerenter", () => {
      this.layer.append(mark); // on top of its neighbors
      this.#tell(item);
    });
    mark.addEventListener("pointerleave", () => this.tip.hide());
    return mark;
  }

  #tell(item) {
    const { width, height } = this.#box();
    const [x, y] = this.shown[item.index];
    const unit = this.#unit() * this.view.zoom;
    this.tip.show(
      width / 2 + this.view.x + unit * x,
      height / 2 + this.view.y - unit * y,
      item.thumbnail ? html("img", { src: item.thumbnail, alt: "", class: "tip-picture" }) : "",
      html("div", { class: "strong" }, short(item.label, 60)),
      html("div", { class: "muted" }, this.notes?.[item.index] ?? ""),
    );
  }

  #zoom(factor, atX, atY) {
    const { width, height } = this.#box();
    const zoom = Math.min(NEAREST, Math.max(FARTHEST, this.view.zoom * factor));
    const ratio = zoom / this.view.zoom;
    const [px, py] = [(atX ?? width / 2) - width / 2, (atY ?? height / 2) - height / 2];
    // The point under the pointer stays under it.
    this.view = { zoom, x: px - (px - this.view.x) * ratio, y: py - (py - this.view.y) * ratio };
    this.draw();
  }

  #pan(dx, dy) {
    this.view = { ...this.view, x: this.view.x + dx, y: this.view.y + dy };
    this.draw();
  }

  #buttons() {
    const button = (text, name, act) => {
      const made = html("button", { type: "button", class: "map-button", "aria-label": name, title: name }, text);
      made.addEventListener("click", act);
      return made;
    };
    return html(
      "div",
      { class: "map-buttons" },
      button("+", this.words.zoomIn, () => this.#zoom(1.4)),
      button("−", this.words.zoomOut, () => this.#zoom(1 / 1.4)),
      button("⤢", this.words.reset, () => this.reset()),
    );
  }

  #listen() {
    const fingers = new Map();
    const local = (event) => {
      const box = this.root.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.root.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.#zoom(Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.0016)), ...local(event));
      },
      { passive: false },
    );
    this.root.addEventListener("pointerdown", (event) => {
      this.root.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, local(event));
      this.root.classList.add("dragging");
    });
    this.root.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const now = local(event);
      if (fingers.size === 1) {
        this.#pan(now[0] - before[0], now[1] - before[1]);
      } else if (fingers.size === 2) {
        const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
        const far = (a, b) => Math.max(8, Math.hypot(a[0] - b[0], a[1] - b[1]));
        this.#zoom(far(now, other) / far(before, other), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      }
      fingers.set(event.pointerId, now);
    });
    const lift = (event) => {
      fingers.delete(event.pointerId);
      if (fingers.size === 0) this.root.classList.remove("dragging");
    };
    this.root.addEventListener("pointerup", lift);
    this.root.addEventListener("pointercancel", lift);
    this.root.addEventListener("dblclick", () => this.reset());
    this.root.addEventListener("keydown", (event) => {
      const act = {
        "+": () => this.#zoom(1.4),
        "=": () => this.#zoom(1.4),
        "-": () => this.#zoom(1 / 1.4),
        0: () => this.reset(),
        ArrowLeft: () => this.#pan(40, 0),
        ArrowRight: () => this.#pan(-40, 0),
        ArrowUp: () => this.#pan(0, 40),
        ArrowDown: () => this.#pan(0, -40),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
  }
}
