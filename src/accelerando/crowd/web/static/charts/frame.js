// What all charts share: a card's drawing area, axes, a sentence for those who listen, a tooltip.

import { html, place, svg } from "./svg.js";

const MARGIN = { top: 10, right: 14, bottom: 36, left: 46 };

/** Remove what was drawn and say that there is nothing to draw yet. */
export function empty(container, sentence) {
  container.replaceChildren(html("p", { class: "chart-empty" }, sentence));
}

/**
 * Draw axes and return where to draw: the group, its size, and the scales' pixel ranges.
 * x and y: {scale, ticks, format, label}.
 */
export function frame(container, { label, x, y }) {
  const width = Math.max(260, Math.round(container.clientWidth || 480));
  const height = Math.max(160, Math.round(container.clientHeight || 200));
  const root = svg("svg", {
    class: "chart",
    role: "img",
    "aria-label": label,
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
  });
  const inner = {
    left: MARGIN.left,
    right: width - MARGIN.right,
    top: MARGIN.top,
    bottom: height - MARGIN.bottom,
  };
  const xs = x.make(inner.left, inner.right);
  const ys = y.make(inner.bottom, inner.top);
  const grid = svg("g", { class: "grid" });
  const words = svg("g", { class: "axis" });
  for (const tick of y.ticks) {
    const at = ys(tick);
    grid.append(svg("line", { x1: inner.left, x2: inner.right, y1: at, y2: at }));
    words.append(svg("text", { x: inner.left - 7, y: at + 4, "text-anchor": "end" }, y.format(tick)));
  }
  let last = -Infinity;
  for (const tick of x.ticks) {
    const at = xs(tick);
    const word = x.format(tick);
    const half = word.length * 3.4 + 4;
    if (at - half < last || at + half > width) continue; // labels must not touch
    last = at + half;
    words.append(
      svg("line", { class: "tick", x1: at, x2: at, y1: inner.bottom, y2: inner.bottom + 4 }),
      svg("text", { x: at, y: inner.bottom + 16, "text-anchor": "middle" }, word),
    );
  }
  if (x.label) {
    words.append(
      svg("text", { class: "label", x: inner.right, y: height - 4, "text-anchor": "end" }, x.label),
    );
  }
  const marks = svg("g", { class: "marks" });
  const base = svg("line", { class: "base", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom });
  root.append(grid, marks, base, words);
  container.replaceChildren(root);
  return { root, marks, inner, xs, ys, width, height };
}

/** A little box that follows the pointer over `container`. */
export function tooltip(container) {
  const box = html("div", { class: "chart-tip", "aria-hidden": "true", hidden: true });
  container.append(box);
  return {
    show(left, top, ...content) {
      box.replaceChildren(...content);
      box.hidden = false;
      const room = container.clientWidth - box.offsetWidth - 4;
      place(box, { left: `${Math.max(4, Math.min(room, left + 12))}px`, top: `${Math.max(2, top - box.offsetHeight - 8)}px` });
    },
    hide() {
      box.hidden = true;
    },
  };
}
