// Histograms of numbers and bars of named counts.

import { empty, frame, tooltip } from "./frame.js";
import { linear, number, ticks, timeTicks, wholeTicks } from "./scale.js";
import { html, place, svg } from "./svg.js";

/**
 * Bars between edges: counts[k] lies in [edges[k], edges[k + 1]), or belongs to names[k].
 * With `even`, all bars are equally wide, whatever their edges: for edges that grow.
 */
export function histogram(container, options) {
  const { label, edges, counts, names, color = 1, format = number, time = false, even = false, xLabel = "", nothing, mark } = options;
  if (!counts.some((count) => count > 0)) return empty(container, nothing);
  const most = Math.max(...counts);
  const at = even ? edges.map((_, k) => k) : edges;
  const [low, high] = [at[0], at[at.length - 1]];
  const marks = even ? at : time ? timeTicks(low, high) : names ? [] : ticks(low, high, 6);
  const view = frame(container, {
    label,
    x: { make: (from, to) => linear(low, high, from, to), ticks: marks, format: even ? (k) => format(edges[k]) : format, label: xLabel },
    y: { make: (from, to) => linear(0, most * 1.05, from, to), ticks: wholeTicks(0, most), format: number },
  });
  const tip = tooltip(container);
  counts.forEach((count, k) => {
    const [left, right] = [view.xs(at[k]), view.xs(at[k + 1])];
    const gap = right - left > 4 ? 1 : 0;
    const bar = svg("rect", {
      class: `bar color-${color}`,
      x: left,
      width: Math.max(0.5, right - left - gap),
      y: view.ys(count),
      height: view.inner.bottom - view.ys(count),
    });
    const what = names ? names[k] : `${format(edges[k])} to ${format(edges[k + 1])}`;
    bar.addEventListener("pointerenter", () => {
      tip.show(left, view.ys(count), html("div", { class: "muted" }, what), html("div", {}, number(count)));
    });
    bar.addEventListener("pointerleave", () => tip.hide());
    view.marks.append(bar);
  });
  if (mark) drawMark(view, even ? evenPlace(edges, mark.value) : mark.value, mark.label);
  return undefined;
}

/** Position of a value between edges that are drawn at equal distances. */
function evenPlace(edges, value) {
  const k = Math.min(edges.length - 2, Math.max(0, edges.findLastIndex((edge) => edge <= value)));
  return k + (value - edges[k]) / (edges[k + 1] - edges[k]);
}

function drawMark(view, value, label) {
  const at = view.xs(value);
  if (!(at >= view.inner.left && at <= view.inner.right)) return;
  const late = at > (view.inner.left + view.inner.right) / 2;
  view.marks.append(
    svg("line", { class: "mark", x1: at, x2: at, y1: view.inner.top, y2: view.inner.bottom }),
    svg("text", { class: "mark-label", x: at + (late ? -5 : 5), y: view.inner.top + 10, "text-anchor": late ? "end" : "start" }, label),
  );
}

/** Named horizontal bars in HTML: readable at any width, and by screen readers. */
export function namedBars(container, { rows, format = number, nothing }) {
  if (rows.length === 0) return empty(container, nothing);
  const most = Math.max(...rows.map((row) => row.value), 1e-12);
  const list = html("ul", { class: "named-bars" });
  for (const row of rows) {
    const bar = html("span", { class: `amount color-${row.color ?? 1}` });
    place(bar, { width: `${(100 * row.value) / most}%` });
    list.append(
      html("li", {}, html("span", { class: "name", title: row.name }, row.name), html("span", { class: "track" }, bar), html("span", { class: "value" }, row.text ?? format(row.value))),
    );
  }
  container.replaceChildren(list);
  return undefined;
}
