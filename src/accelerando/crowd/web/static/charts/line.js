// Lines over numbers or time, each with an optional band.

import { empty, frame, tooltip } from "./frame.js";
import { linear, number, ticks, timeFormat, timeTicks } from "./scale.js";
import { html, svg } from "./svg.js";

const path = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/**
 * Draw lines into `container`.
 * series: [{name, color, points: [[x, y]], band: [[x, low, high]]}], x sorted.
 */
export function lineChart(container, options) {
  const { label, series, time = false, yFormat = number, xFormat = number, xLabel = "", yRange, nothing, rule } = options;
  const drawn = series.filter((one) => one.points.length > 0);
  if (drawn.length === 0) return empty(container, nothing);
  const xsAll = drawn.flatMap((one) => one.points.map(([x]) => x));
  const ysAll = drawn.flatMap((one) => [
    ...one.points.map(([, y]) => y),
    ...(one.band ?? []).flatMap(([, low, high]) => [low, high]),
  ]);
  const [x0, x1] = [Math.min(...xsAll), Math.max(...xsAll)];
  const [y0, y1] = yRange ?? [Math.min(0, ...ysAll), Math.max(...ysAll) * 1.05 || 1];
  const view = frame(container, {
    label,
    x: {
      make: (from, to) => linear(x0, x1, from, to),
      ticks: time ? timeTicks(x0, x1) : ticks(x0, x1),
      format: time ? timeFormat(x1 - x0) : xFormat,
      label: xLabel,
    },
    y: { make: (from, to) => linear(y0, y1, from, to), ticks: ticks(y0, y1, 4), format: yFormat },
  });
  const clamp = (value) => Math.min(y1, Math.max(y0, value));
  const at = ([x, y]) => [view.xs(x), view.ys(clamp(y))];
  if (rule !== undefined && rule !== null && rule >= y0 && rule <= y1) {
    view.marks.append(svg("line", { class: "rule", x1: view.inner.left, x2: view.inner.right, y1: view.ys(rule), y2: view.ys(rule) }));
  }
  for (const one of drawn) {
    if (one.band?.length > 1) {
      const up = one.band.map(([x, , high]) => at([x, high]));
      const down = one.band.map(([x, low]) => at([x, low])).reverse();
      view.marks.append(svg("path", { class: `band color-${one.color}`, d: `${path([...up, ...down])}Z` }));
    }
    const points = one.points.map(at);
    view.marks.append(svg("path", { class: `line color-${one.color}`, d: path(points) }));
    if (points.length < 40) {
      for (const [cx, cy] of points) view.marks.append(svg("circle", { class: `dot color-${one.color}`, cx, cy, r: 2.5 }));
    }
  }
  hover(container, view, drawn, at, time ? timeFormat(x1 - x0) : xFormat, yFormat);
  return undefined;
}

function hover(container, view, series, at, xFormat, yFormat) {
  const tip = tooltip(container);
  const cursor = svg("line", { class: "cursor", y1: view.inner.top, y2: view.inner.bottom, visibility: "hidden" });
  view.marks.append(cursor);
  view.root.addEventListener("pointermove", (event) => {
    const box = view.root.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * view.width;
    const rows = series.map((one) => {
      const nearest = one.points.reduce((best, point) =>
        Math.abs(at(point)[0] - x) < Math.abs(at(best)[0] - x) ? point : best,
      );
      return { one, nearest };
    });
    const anchor = at(rows[0].nearest);
    cursor.setAttribute("x1", anchor[0]);
    cursor.setAttribute("x2", anchor[0]);
    cursor.setAttribute("visibility", "visible");
    tip.show(
      (anchor[0] / view.width) * box.width,
      anchor[1],
      html("div", { class: "muted" }, xFormat(rows[0].nearest[0])),
      ...rows.map(({ one, nearest }) => {
        const band = one.band?.find(([bx]) => bx === nearest[0]);
        const range = band ? ` (${yFormat(band[1])} to ${yFormat(band[2])})` : "";
        return html("div", {}, `${one.name}: ${yFormat(nearest[1])}${range}`);
      }),
    );
  });
  view.root.addEventListener("pointerleave", () => {
    tip.hide();
    cursor.setAttribute("visibility", "hidden");
  });
}
