// Charts of one series over true time: gaps stay gaps, the axes say what is what, and a pointer or the arrow keys
// read single values.

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
  // Half a message is none.
  const marks = isCount && ceiling / 2 % 1 ? [0, 1] : [0, 0.5, 1];
  const index = pointed.chart === id ? Math.min(pointed.index, mean.length - 1) : null;
  const percent = (at) => `${(100 * at / Math.max(mean.length - 1, 1)).toFixed(2)}%`;
  const long = end - start > 172800;
  const point = (at) => { pointed.chart = id; pointed.index = Math.max(0, Math.min(mean.length - 1, at)); redraw(); };
  const said = index === null ? now : mean[index] === null ? `${clock(start + index * step)} · not sampled`
    : `${long ? day(start + index * step) + " " : ""}${clock(start + index * step)} · ${show(mean[index])}`
      + (high[index] > mean[index] ? ` (highest ${show(high[index])})` : "");
  return make("figure", { class: "card chart", id: `chart-${id}` },
    make("figcaption", {}, make("span", {}, title), make("b", { "aria-live": index === null ? "off" : "polite" }, said)),
    draw("svg", {
      class: "plot", tabindex: "0", role: "img",
      "aria-label": `${title}: now ${now}, highest ${show(highest)} in the time shown. Arrow keys read single values.`,
      onpointermove: (event) => {
        const box = event.currentTarget.getBoundingClientRect();
        point(Math.round((event.clientX - box.left) / box.width * (mean.length - 1)));
      },
      onpointerleave: () => { pointed.chart = null; redraw(); },
      onblur: () => { if (pointed.chart === id) { pointed.chart = null; redraw(); } },
      onkeydown: (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!move) return;
        event.preventDefault();
        point((index ?? mean.length - 1) + move);
      },
    },
      marks.map((share) => draw("line", { class: "grid", x1: "0", x2: "100%", y1: `${100 - 98 * share}%`, y2: `${100 - 98 * share}%` })),
      draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", width: "100%", height: "100%" }, shapes(high, ceiling, ["band"]), shapes(mean, ceiling)),
      isCut && high.map((value, at) => value !== null && value > ceiling
        && draw("text", { class: "spike", x: percent(at), y: "9", "text-anchor": "middle" }, "▲")),
      marks.map((share) => draw("text", { class: "axis", x: "2", y: `${100 - 98 * share}%`, dy: share ? "11" : "-3" }, show(ceiling * share))),
      index !== null && draw("line", { class: "cursor", x1: percent(index), x2: percent(index), y1: "0", y2: "100%" })),
    make("div", { class: "times" }, ticks(start, end, long)),
    robust.isCut && make("button", {
      type: "button", class: "link", onclick: () => { if (!whole.delete(id)) whole.add(id); redraw(); },
    }, isCut ? `Spikes up to ${show(highest)} are clipped (▲): show full scale` : "Clip spikes"));
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
