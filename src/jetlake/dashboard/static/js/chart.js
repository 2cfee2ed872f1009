// Charts over true time, of one series or of a few beside each other: gaps stay gaps, the axes say what is what, and a
// pointer or the arrow keys read single values.

import { draw, make } from "./elements.js";
import { clock, day, hour, short } from "./format.js";
import { roundUp, runs, timeTicks, top } from "./scale.js";

const WIDTH = 1000;
const HEIGHT = 100;

/** The lines of a series and the ground under them, drawn into WIDTH by HEIGHT. */
function shapes(values, ceiling, kinds = ["fill", "line"]) {
  const x = (index) => (WIDTH * index / Math.max(values.length - 1, 1)).toFixed(1);
  const y = (value) => (HEIGHT - (HEIGHT - 2) * Math.min(value / ceiling, 1)).toFixed(1);
  return runs(values).flatMap((run) => {
    // A single value between two gaps is a short stroke, or nobody would see it.
    const points = run.map((index) => [x(index), y(values[index])]);
    if (run.length === 1) points.push([x(run[0] + 0.8), points[0][1]]);
    const line = points.map((point) => point.join()).join(" ");
    const ground = `${points[0][0]},${HEIGHT} ${line} ${points.at(-1)[0]},${HEIGHT}`;
    return kinds.map((kind) => draw(kind === "fill" ? "polygon" : "polyline", { class: kind, points: kind === "fill" ? ground : line }));
  });
}

const latest = (values) => values.findLast((value) => value !== null && value !== undefined);

/** A small chart for a table; it says its latest and highest value to those who cannot see it. */
export function spark(series, label) {
  const known = series.mean.filter((value) => value !== null);
  const scale = top(series.mean);
  return draw("svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${label}: now ${short(latest(series.mean) ?? 0)}, highest ${short(known.length ? Math.max(...known) : 0)}`,
  }, shapes(series.mean, scale.top));
}

const pointed = { chart: null, index: 0 };
// Charts whose spikes are shown whole, because a reader asked for it.
const whole = new Set();

/**
 * A chart with axes.
 * show: how a value is written. redraw: called when the reader points at something.
 */
export function chart(id, title, series, { now, show = short, redraw, isCount = show === short }) {
  const { start, step, mean, high } = series;
  const end = start + step * mean.length;
  const highest = Math.max(0, ...high.filter((value) => value !== null));
  const robust = top(high);
  const isCut = robust.isCut && !whole.has(id);
  const ceiling = isCut ? robust.top : roundUp(highest);
  const index = pointedAt(id, mean.length);
  const long = isLong(start, end);
  const said = index === null ? now : mean[index] === null ? `${moment(start + index * step, long)} · not sampled`
    : `${moment(start + index * step, long)} · ${show(mean[index])}` + (high[index] > mean[index] ? ` (highest ${show(high[index])})` : "");
  const spikes = isCut && high.map((value, at) => value !== null && value > ceiling
    && draw("text", { class: "spike", x: percent(at, mean.length), y: "9", "text-anchor": "middle" }, "▲"));
  return make("figure", { class: "card chart", id: `chart-${id}` },
    make("figcaption", {}, make("span", {}, title), make("b", { "aria-live": index === null ? "off" : "polite" }, said)),
    plot(id, `${title}: now ${now}, highest ${show(highest)} in the time shown.`, mean.length, { ceiling, show, isCount, redraw },
      [shapes(high, ceiling, ["band"]), shapes(mean, ceiling)], spikes),
    make("div", { class: "times" }, ticks(start, end, long)),
    robust.isCut && make("button", {
      type: "button", class: "link", onclick: () => { if (!whole.delete(id)) whole.add(id); redraw(); },
    }, isCut ? `Spikes up to ${show(highest)} are clipped (▲): show full scale` : "Clip spikes"));
}

/**
 * A chart of several series of the same time, with a legend that gives the value of each.
 * rows: { label, href, series: { start, step, mean } }, at most five.
 */
export function lines(id, title, rows, { show = short, redraw, isCount = show === short }) {
  const { start, step, mean } = rows[0].series;
  const end = start + step * mean.length;
  const highest = Math.max(0, ...rows.flatMap((row) => row.series.mean).filter((value) => value !== null));
  const ceiling = roundUp(highest);
  const index = pointedAt(id, mean.length);
  const long = isLong(start, end);
  const valueOf = ({ series }) => (index === null ? latest(series.mean) : series.mean[index]);
  return make("figure", { class: "card chart", id: `chart-${id}` },
    make("figcaption", {}, make("span", {}, title), make("b", {}, index === null ? "" : moment(start + index * step, long))),
    plot(id, `${title}: ${rows.map((row) => `${row.label} ${show(latest(row.series.mean) ?? 0)}`).join(", ")}.`, mean.length, { ceiling, show, isCount, redraw },
      rows.map((row, at) => draw("g", { class: `series series-${at}` }, shapes(row.series.mean, ceiling, ["line"])))),
    make("div", { class: "times" }, ticks(start, end, long)),
    make("ul", { class: "legend" }, rows.map((row, at) => {
      const value = valueOf(row);
      return make("li", {}, draw("svg", { class: `key series series-${at}`, viewBox: "0 0 24 4", "aria-hidden": "true" }, draw("line", { class: "line", x1: "0", x2: "24", y1: "2", y2: "2" })),
        make("a", { href: row.href, title: row.label }, row.label), make("b", {}, value === null || value === undefined ? "–" : show(value)));
    })));
}

const percent = (at, length) => `${(100 * at / Math.max(length - 1, 1)).toFixed(2)}%`;
const isLong = (start, end) => end - start > 172800;
const moment = (seconds, long) => `${long ? `${day(seconds)} ` : ""}${clock(seconds)}`;
const pointedAt = (id, length) => (pointed.chart === id ? Math.min(pointed.index, length - 1) : null);

/** The ground of a chart: its value axis, what is drawn on it, and the place that a reader points at. */
function plot(id, label, length, { ceiling, show, isCount, redraw }, drawn, above) {
  // Half a message is none.
  const marks = isCount && ceiling / 2 % 1 ? [0, 1] : [0, 0.5, 1];
  const index = pointedAt(id, length);
  const point = (at) => { pointed.chart = id; pointed.index = Math.max(0, Math.min(length - 1, at)); redraw(); };
  return draw("svg", {
    class: "plot", tabindex: "0", role: "img", "aria-label": `${label} Arrow keys read single values.`,
    onpointermove: (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      point(Math.round((event.clientX - box.left) / box.width * (length - 1)));
    },
    onpointerleave: () => { pointed.chart = null; redraw(); },
    onblur: () => { if (pointed.chart === id) { pointed.chart = null; redraw(); } },
    onkeydown: (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      point((index ?? length - 1) + move);
    },
  },
  marks.map((share) => draw("line", { class: "grid", x1: "0", x2: "100%", y1: `${100 - 98 * share}%`, y2: `${100 - 98 * share}%` })),
  draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", width: "100%", height: "100%" }, drawn),
  above,
  marks.map((share) => draw("text", { class: "axis", x: "2", y: `${100 - 98 * share}%`, dy: share ? "11" : "-3" }, show(ceiling * share))),
  index !== null && draw("line", { class: "cursor", x1: percent(index, length), x2: percent(index, length), y1: "0", y2: "100%" }));
}

function ticks(start, end, long) {
  const times = timeTicks(start, end, 4);
  return draw("svg", { class: "ticks", "aria-hidden": "true" }, times.map((time) => {
    const share = (time - start) / (end - start);
    return draw("text", {
      x: `${(100 * share).toFixed(2)}%`, y: "11", "text-anchor": share < 0.08 ? "start" : share > 0.92 ? "end" : "middle",
    }, long ? day(time) : hour(time));
  }));
}
