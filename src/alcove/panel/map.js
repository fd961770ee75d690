// Memories as points in a plane, close where they mean something alike. Drawn on a canvas: ten thousand are many.

import { get } from "./api.js";
import { to } from "./app.js";
import { counted, element, empty, field, firstMemory, form, h, input, link, segments, select, spelled } from "./dom.js";
import { recorded } from "./memories.js";

const colours = 8,
  near = 12;

export default async function map(asked, { go, until }) {
  const ns = asked.getAll("ns"),
    by = asked.get("by") ?? "namespace";
  const { points, unplaced, more } = await get("/v1/memories/map", { ns });
  const choosing = form(
    (given) => go({ ns: segments(given.get("ns")), by }),
    h(
      "div.row.card",
      field("Namespace", input({ name: "ns", value: spelled(ns), placeholder: "all you may see" })),
      h("button", "Show"),
      field(
        "Coloured by",
        select([["namespace"], ["type"]], by, { onchange: (event) => go({ ns, by: event.target.value }) }),
      ),
    ),
  );
  if (!points.length)
    return h(
      "div",
      choosing,
      empty(
        "Nothing to lay out yet",
        "Memories with index text appear here once they are indexed.",
        firstMemory,
      ),
    );
  const groups = grouped(
    points,
    by === "type" ? (point) => point.type ?? "no type" : (point) => spelled(point.namespace),
  );
  const canvas = element("canvas", {
    role: "img",
    tabindex: "0",
    "aria-label": `${counted(points.length, "memory", "memories")} laid out by meaning; the list below has the same`,
  });
  const tip = element("div.tip", { hidden: true }),
    box = h("div.map", canvas, tip);
  const draw = () => paint(canvas, points, groups),
    at = (event) => closest(canvas, points, event);
  canvas.addEventListener("mousemove", (event) => {
    const point = at(event);
    tip.hidden = !point;
    if (!point) return;
    tip.replaceChildren(h("b", point.text || point.key), h("br"), spelled(point.namespace));
    tip.style.left = `${Math.min(event.offsetX + 14, canvas.clientWidth - 220)}px`;
    tip.style.top = `${event.offsetY + 14}px`;
  });
  canvas.addEventListener("mouseleave", () => {
    tip.hidden = true;
  });
  canvas.addEventListener("click", (event) => {
    const point = at(event);
    if (point) go({ ns: point.namespace, key: point.key }, "memory");
  });
  const watch = new ResizeObserver(draw),
    shade = new MutationObserver(draw);
  watch.observe(canvas);
  shade.observe(document.documentElement, { attributes: true });
  until(() => {
    watch.disconnect();
    shade.disconnect();
  });
  const told = [
    counted(points.length, "memory", "memories"),
    unplaced && `${counted(unplaced, "other")} without vectors`,
    more && "older ones are not shown",
  ]
    .filter(Boolean)
    .join("; ");
  return h(
    "div",
    choosing,
    recorded(points.map((point) => point.namespace)),
    box,
    h(
      "div.legend",
      [...groups.names].map(([name, n]) => h("span", element("i", { class: `k${n}` }), name)),
      h("span.soft", told),
    ),
    h(
      "details",
      h("summary", "The same as a list"),
      h(
        "ul.plain",
        points
          .slice(0, 200)
          .map((point) =>
            h(
              "li",
              link(point.text || point.key, to("memory", { ns: point.namespace, key: point.key })),
              " ",
              h("small", spelled(point.namespace)),
            ),
          ),
      ),
    ),
  );
}

// The largest groups get a colour each, all others share the last.
function grouped(points, of) {
  const sizes = new Map();
  for (const point of points) sizes.set(of(point), (sizes.get(of(point)) ?? 0) + 1);
  const largest = [...sizes].sort((a, b) => b[1] - a[1]).map(([name]) => name),
    own = largest.length > colours ? colours - 1 : colours;
  const names = new Map(largest.slice(0, own).map((name, n) => [name, n]));
  if (largest.length > own) names.set("others", colours - 1);
  return { names, of: (point) => names.get(of(point)) ?? colours - 1 };
}

function paint(canvas, points, groups) {
  const scale = devicePixelRatio,
    { clientWidth: width, clientHeight: height } = canvas,
    style = getComputedStyle(document.documentElement);
  const colour = Array.from({ length: colours }, (_, n) => style.getPropertyValue(`--c${n}`)),
    pen = canvas.getContext("2d");
  canvas.width = width * scale;
  canvas.height = height * scale;
  pen.scale(scale, scale);
  pen.globalAlpha = points.length > 2000 ? 0.5 : 0.8;
  const size = points.length > 2000 ? 2 : 4;
  for (const point of points) {
    pen.fillStyle = colour[groups.of(point)];
    pen.beginPath();
    pen.arc(point.x * width, point.y * height, size, 0, 7);
    pen.fill();
  }
}

function closest(canvas, points, { offsetX, offsetY }) {
  let found = null,
    best = near ** 2;
  for (const point of points) {
    const apart = (point.x * canvas.clientWidth - offsetX) ** 2 + (point.y * canvas.clientHeight - offsetY) ** 2;
    if (apart < best) [found, best] = [point, apart];
  }
  return found;
}
