// Memories as points on a plane, close together if their meanings are similar. On a canvas: there may be ten thousand.

import { get } from "./api.js";
import { to } from "./app.js";
import { plural, element, empty, field, firstMemory, form, h, input, link, parseNamespace, select, formatNamespace } from "./dom.js";
import { auditNotice } from "./memories.js";

const colours = 8,
  near = 12;

export default async function map(params, { go, until }) {
  const ns = params.getAll("ns"),
    by = params.get("by") ?? "namespace";
  const { points, unplaced, more } = await get("/v1/memories/map", { ns });
  const choosing = form(
    (given) => go({ ns: parseNamespace(given.get("ns")), by }),
    h(
      "div.row.card",
      field("Namespace", input({ name: "ns", value: formatNamespace(ns), placeholder: "everything you can read" })),
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
        "Nothing to show yet",
        "Memories with index text appear here once they are indexed.",
        firstMemory,
      ),
    );
  const groups = grouped(
    points,
    by === "type" ? (point) => point.type ?? "no type" : (point) => formatNamespace(point.namespace),
  );
  const canvas = element("canvas", {
    role: "img",
    tabindex: "0",
    "aria-label": `${plural(points.length, "memory", "memories")} laid out by meaning; the list below has the same`,
  });
  const tip = element("div.tip", { hidden: true }),
    box = h("div.map", canvas, tip);
  const draw = () => paint(canvas, points, groups),
    at = (event) => closest(canvas, points, event);
  canvas.addEventListener("mousemove", (event) => {
    const point = at(event);
    tip.hidden = !point;
    if (!point) return;
    tip.replaceChildren(h("b", point.text || point.key), h("br"), formatNamespace(point.namespace));
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
  const summary = [
    plural(points.length, "memory", "memories"),
    unplaced && `${plural(unplaced, "other")} without vectors`,
    more && "older ones are not shown",
  ]
    .filter(Boolean)
    .join("; ");
  return h(
    "div",
    choosing,
    auditNotice(points.map((point) => point.namespace)),
    box,
    h(
      "div.legend",
      [...groups.names].map(([name, n]) => h("span", element("i", { class: `k${n}` }), name)),
      h("span.soft", summary),
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
              h("small", formatNamespace(point.namespace)),
            ),
          ),
      ),
    ),
  );
}

// Each of the largest groups has a colour; all others share the last one.
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
