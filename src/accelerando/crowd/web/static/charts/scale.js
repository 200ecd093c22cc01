// Numbers to pixels, and which numbers to write on an axis. Pure functions.

/** Map [low, high] to [from, to]; an empty interval goes to the middle. */
export function linear(low, high, from, to) {
  const span = high - low;
  if (!(span > 0)) return () => (from + to) / 2;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** About `count` round numbers inside [low, high]. */
export function ticks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) {
    found.push(Number((k * step).toPrecision(12)));
  }
  return found;
}

/** Integers only, for counts. */
export function wholeTicks(low, high, count = 4) {
  return ticks(low, high, count).filter((value) => Number.isInteger(value));
}

const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** Times (seconds since 1970) at round clock times. */
export function timeTicks(low, high, count = 5) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const step = SECONDS.find((s) => s >= span / count) ?? Math.ceil(span / count / 604800) * 604800;
  // Days begin at midnight here, not in Greenwich.
  const shift = new Date(low * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let k = Math.ceil((low - shift) / step); k * step + shift <= high; k += 1) found.push(k * step + shift);
  return found;
}

/** How to write a time on an axis that covers `span` seconds. */
export function timeFormat(span) {
  const options =
    span > 3 * 86400
      ? { month: "short", day: "numeric" }
      : span > 86400
        ? { weekday: "short", hour: "2-digit", minute: "2-digit" }
        : span > 300
          ? { hour: "2-digit", minute: "2-digit" }
          : { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  const writer = new Intl.DateTimeFormat(undefined, options);
  return (value) => writer.format(new Date(value * 1000));
}

const plain = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });

/** 12,345 or 0.25. */
export const number = (value) => plain.format(value);

/** 81 %. */
export const percent = (value) => `${plain.format(Math.round(value * 1000) / 10)} %`;

/** 850 ms, 2.4 s, 3 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${plain.format(Math.round(seconds * 1000))} ms`;
  if (seconds < 100) return `${plain.format(Math.round(seconds * 10) / 10)} s`;
  if (seconds < 7200) return `${plain.format(Math.round(seconds / 60))} min`;
  if (seconds < 172800) return `${plain.format(Math.round(seconds / 3600))} h`;
  return `${plain.format(Math.round(seconds / 86400))} days`;
}
