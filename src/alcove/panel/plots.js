// Small plots as SVG, each with a table of its numbers for readers who cannot see it.

import { element, h, number, svg, table } from "./dom.js";

const wide = 520,
  high = 180,
  left = 60,
  bottom = 30,
  top = 14;

const frame = (title, legend, drawn, numbers) =>
  h(
    "figure.card",
    h("h2", title),
    svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title }, drawn),
    legend.length > 1 &&
      h(
        "div.legend",
        legend.map((name, n) => h("span", element("i", { class: `k${n % 8}` }), name)),
      ),
    h("details", h("summary", "As numbers"), numbers),
  );

function axes(highest, least, names) {
  const most = highest + ((highest - least) % 2); // so that the middle is a whole number, too
  const y = (value) => top + (high - bottom - top) * (1 - (value - least) / (most - least || 1)),
    step = Math.max(1, Math.ceil(names.length / 6));
  const x = (n) => left + ((wide - left) * (n + 0.5)) / names.length;
  const lines = [least, (least + most) / 2, most].map((value) => [
    svg("line", { x1: left, x2: wide, y1: y(value), y2: y(value), class: "axis" }),
    svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(Math.round(value * 10) / 10)),
  ]);
  const words = names.map((name, n) =>
    n % step ? [] : svg("text", { x: x(n), y: high - 6, "text-anchor": "middle" }, name),
  );
  return { x, y, drawn: [lines, words] };
}

// Stacked bars, one per name.
export function stacked(title, names, kinds, count) {
  const most = Math.max(1, ...names.map((_, n) => kinds.reduce((sum, kind) => sum + count(kind, n), 0))),
    { x, y, drawn } = axes(most, 0, names),
    width = Math.min(60, Math.max(1, ((wide - left) / names.length) * 0.8));
  const bars = names.map((_, n) => {
    let base = 0;
    return kinds.map((kind, k) => {
      const value = count(kind, n),
        from = base;
      base += value;
      return value
        ? svg("rect", { x: x(n) - width / 2, width, y: y(base), height: y(from) - y(base), class: `k${k % 8}` })
        : [];
    });
  });
  return frame(
    title,
    kinds,
    [drawn, bars],
    table(
      title,
      ["", ...kinds],
      names.map((name, n) => [name, ...kinds.map((kind) => number(count(kind, n)))]),
    ),
  );
}

export function lines(title, names, series) {
  const every = series.flatMap(([, values]) => values),
    { x, y, drawn } = axes(Math.max(1, ...every), Math.min(0, ...every), names);
  const paths = series.map(([, values], n) =>
    svg("path", { class: `k${n % 8}`, d: values.map((value, m) => `${m ? "L" : "M"}${x(m)} ${y(value)}`).join("") }),
  );
  return frame(
    title,
    series.map(([name]) => name),
    [drawn, paths],
    table(
      title,
      ["", ...series.map(([name]) => name)],
      names.map((name, n) => [name, ...series.map(([, values]) => number(values[n]))]),
    ),
  );
}
