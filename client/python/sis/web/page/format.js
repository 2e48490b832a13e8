// Numbers for people, with their units. An absent number is a dash.

const NONE = "–";

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Three significant digits, without zeros at the end.
function digits(value) {
  return String(Number(value.toPrecision(3)));
}

// Uses the unit in which the number is below `base`, or the last unit.
function scaled(value, base, units) {
  if (!isNumber(value)) return NONE;
  let [rest, unit] = [value, 0];
  for (; unit + 1 < units.length && Math.abs(rest) >= base - 0.5; ++unit) rest /= base;
  return `${digits(rest)} ${units[unit]}`.trimEnd();
}

/** Three significant digits, and k, M, G, T for thousands. */
export function count(value) {
  return scaled(value, 1000, ["", "k", "M", "G", "T"]);
}

export function perSecond(value) {
  return isNumber(value) ? `${count(value)}/s` : NONE;
}

export function bytes(value) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

/** 0 to 1 as percent, for an axis. */
export function wholeShare(value) {
  return `${digits(100 * value)}%`;
}

/** 0 to 1 as percent. */
export function share(value) {
  if (!isNumber(value)) return NONE;
  const percent = 100 * value;
  if (percent !== 0 && Math.abs(percent) < 0.1) return `${percent.toPrecision(2)}%`;
  // A share below 1 must not read as 100%.
  return percent > 99.95 && percent < 100 ? `${Math.min(percent, 99.99).toFixed(2)}%` : `${percent.toFixed(1)}%`;
}

/** Nats, or any plain number, with at most `digits` significant digits. */
export function number(value, digits = 3) {
  if (typeof value !== "number" || Number.isNaN(value)) return NONE;
  const size = Math.abs(value);
  const text = size === Infinity ? "∞" : size !== 0 && (size >= 1e5 || size < 1e-4) ? size.toExponential(2) :
    String(Number(size.toPrecision(digits)));
  return value < 0 ? `−${text}` : text;
}

/** As number, with a sign. */
export function signed(value, digits = 4) {
  return (value > 0 ? "+" : "") + number(value, digits);
}

/** All digits of a count, in groups of three. */
export function grouped(value) {
  return Number(value).toLocaleString("en-US");
}

/** The time of day, from seconds since 1970. */
export function clock(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString([], {hour12: false});
}

/** Month, day, hour and minute. */
export function dayAndTime(seconds) {
  const date = new Date(1000 * seconds);
  const two = number => String(number).padStart(2, "0");
  return `${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(seconds).slice(0, 5)}`;
}

/** A time on an axis: with seconds if the axis has some minutes, with the date if it has more than a day. */
export function timeOfAxis(seconds, span) {
  return span < 300 ? clock(seconds) : span < 86400 ? clock(seconds).slice(0, 5) : dayAndTime(seconds);
}

export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}
