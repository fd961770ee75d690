// What happened: events by day, growth of rooms, tool calls, types; for auditors and admins, latency and the index.

import { at, get, text } from "./api.js";
import { empty, field, firstMemory, form, h, input, number, parseNamespace, select, formatNamespace, time } from "./dom.js";
import { auditNotice } from "./memories.js";
import { lines, stacked } from "./plots.js";

const kinds = ["add", "update", "delete", "expired"];

export default async function activity(params, { me, go }) {
  const ns = params.getAll("ns"),
    days = Number(params.get("days") ?? 30);
  const [happened, calls, operating] = await Promise.all([
    get("/v1/memories/activity", { ns, days }),
    toolCalls(),
    me.auditor ? health() : [],
  ]);
  const choosing = form(
    (given) => go({ ns: parseNamespace(given.get("ns")), days: given.get("days") }),
    h(
      "div.row.card",
      field("Namespace", input({ name: "ns", value: formatNamespace(ns), placeholder: "everything you can read" })),
      field("Days", select([["7"], ["30"], ["90"], ["365"]], String(days), { name: "days" })),
      h("button", "Show"),
    ),
  );
  if (!happened.events.length && !calls)
    return h(
      "div",
      choosing,
      empty("Nothing happened in these days", "Every write is an event; this page plots them.", firstMemory),
      operating,
    );
  return h(
    "div",
    choosing,
    auditNotice(happened.growth.map((each) => each.namespace)),
    h("div.plots", byDay(happened, days), growing(happened, days), types(happened), calls, operating),
  );
}

const dates = (since, count) =>
  Array.from({ length: count }, (_, n) => new Date(Date.parse(since) + n * 86400000).toISOString().slice(0, 10));
const short = (days) => days.map((day) => day.slice(5));

function byDay({ since, events }, count) {
  const days = dates(since, count),
    of = new Map(events.map((each) => [`${each.kind} ${each.day}`, each.count]));
  return stacked("Events by day", short(days), kinds, (kind, n) => of.get(`${kind} ${days[n]}`) ?? 0);
}

function growing({ since, growth }, count) {
  const days = dates(since, count),
    rooms = Map.groupBy(growth, (each) => formatNamespace(each.namespace));
  const series = [...rooms].map(([name, steps]) => {
    const by = new Map(steps.map((each) => [each.day, each.by]));
    let total = 0;
    return [name, days.map((day) => (total += by.get(day) ?? 0))];
  });
  return series.length > 0 && lines("Growth of the busiest rooms", short(days), series);
}

function types({ types }) {
  const names = Object.keys(types).slice(0, 12);
  return names.length > 0 && stacked("Memories by type", names, ["memories"], (_, n) => types[names[n]]);
}

async function toolCalls() {
  const { agents } = await get("/v1/agents"),
    every = await Promise.all(
      agents.slice(0, 20).map((agent) => get(at("agents", agent.name, "calls"), { limit: 1000 })),
    );
  const calls = every.flatMap((each) => each.calls),
    tools = [...new Set(calls.map((call) => call.tool))],
    names = [...new Set(calls.map((call) => call.agent))];
  return (
    calls.length > 0 &&
    stacked(
      "Tool calls by agent and tool",
      names,
      tools,
      (tool, n) => calls.filter((call) => call.tool === tool && call.agent === names[n]).length,
    )
  );
}

// From the server's own metrics.
async function health() {
  const [counts, index] = await Promise.all([text("/metrics").catch(() => ""), get("/v1/admin/index")]);
  const buckets = new Map();
  for (const [, labels, value] of counts.matchAll(/^alcove_request_seconds_bucket\{([^}]*)\} (\S+)$/gm)) {
    const le = /le="([^"]+)"/.exec(labels)[1];
    if (labels.includes('route="/v1/memories/search"')) buckets.set(le, (buckets.get(le) ?? 0) + Number(value));
  }
  const bounds = [...buckets.keys()],
    each = bounds.map((le, n) => buckets.get(le) - (n ? buckets.get(bounds[n - 1]) : 0));
  const latency =
    buckets.size > 0 &&
    stacked(
      "Search latency in ms",
      bounds.map((le) => (le === "+Inf" ? "more" : String(1000 * Number(le)))),
      ["searches"],
      (_, n) => each[n],
    );
  return [
    latency,
    h(
      "section.card",
      h("h2", "Index"),
      h(
        "p",
        `${number(index.indexed)} indexed, ${number(index.waiting)} waiting`,
        index.oldest_waiting ? [", the oldest since ", time(index.oldest_waiting)] : "",
        `, ${number(index.parked)} parked.`,
      ),
    ),
  ];
}
