// Numbers, sizes, times and paths as people read them.

const number = new Intl.NumberFormat("en");
const compactNumber = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => number.format(value ?? 0);
/** A rate; one that takes two samples to know is not 0 before the second. */
export const rate = (value) => (value === null || value === undefined ? "not known yet" : `${number.format(Math.round(value * 10) / 10)}/s`);
/** A number of things: "1 message", "2 messages". */
export const plural = (value, one, many = `${one}s`) => `${number.format(value ?? 0)} ${value === 1 ? one : many}`;
/** A number for an axis or a tile: short when it is long. */
export const short = (value) => (Math.abs(value ?? 0) < 10_000 ? number.format(Math.round((value ?? 0) * 10) / 10) : compactNumber.format(value));

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? value.toFixed(1) : value ?? 0} ${units[unit]}`;
}

/** A length of time, from seconds. */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const two = (value) => String(value).padStart(2, "0");
export function clock(seconds) {
  const date = new Date(seconds * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
export const hour = (seconds) => clock(seconds).slice(0, 5);
export const day = (seconds) => new Date(seconds * 1000).toLocaleDateString("en", { weekday: "short", day: "numeric", month: "short" });
/** A time, with its day where that is not today's. */
export const recent = (seconds) => (new Date(seconds * 1000).toDateString() === new Date().toDateString() ? clock(seconds) : `${day(seconds)}, ${clock(seconds)}`);
/** A time as a message tells it: one that is none stays as it is. */
export const moment = (text) => (!text || text.startsWith("0001-") ? "never" : Number.isNaN(Date.parse(text)) ? text : `${day(Date.parse(text) / 1000)}, ${clock(Date.parse(text) / 1000)}`);

export const path = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
export const streamPath = (name) => path("streams", name);
export const consumerPath = (stream, name) => path("streams", stream, "consumers", name);
export const messagesPath = (name) => path("streams", name, "messages");
