// Lists of memories, as several views show them: newest first, page by page, with what may be done to each.

import { del, get, me, post, put } from "./api.js";
import { to } from "./app.js";
import { bar, button, counted, element, gist, h, link, say, spelled, time, toText } from "./dom.js";

export const author = (by) =>
  `by ${by?.agent ? `${by.agent} for ` : ""}${by?.user ?? "nobody known"}${by?.client ? ` through ${by.client}` : ""}`;

const owner = (ns) => (ns[0] === "user" ? ns[1] : ns.includes("u") ? ns[ns.indexOf("u") + 1] : undefined);

// A line above memories that are not the reader's own, which their role lets them read; false above others.
export const recorded = (namespaces) =>
  me.auditor &&
  namespaces.some((ns) => ns[0] !== "knowledge" && owner(ns) !== me.user) &&
  element("p.soft", { role: "note" }, "Reading other people's memories is recorded in the audit log.");

export function entry(memory, { where = false, actions = [] } = {}) {
  const value = memory.value ?? {},
    tags = Array.isArray(value.tags) ? value.tags : [];
  return h(
    "li",
    link(gist(memory), to("memory", { ns: memory.namespace, key: memory.key })),
    h(
      "div.meta",
      where && h("span", spelled(memory.namespace)),
      h("span", memory.key),
      h("span", author(memory.written_by)),
      time(memory.created_at),
      memory.expires_at && h("span", "expires ", time(memory.expires_at)),
      typeof value.type === "string" && h("span.tag", value.type),
      tags.map((tag) => h("span.tag", toText(tag))),
    ),
    memory.explain && explained(memory),
    actions.length > 0 && h("div.row", actions),
  );
}

// What each signal added to a memory's rank, beside how likely it answers the question.
function explained(memory) {
  const signals = Object.entries(memory.explain),
    most = Math.max(...signals.map(([, signal]) => signal.score), 1e-9);
  return h(
    "details",
    h(
      "summary",
      `relevance ${Math.round(100 * (memory.relevance ?? 0))} %, likeness ${memory.score === null ? "not known yet" : memory.score.toFixed(2)}`,
    ),
    signals.map(([name, signal]) =>
      bar(name.replaceAll("_", " "), signal.score / most, `${signal.score.toFixed(3)}, rank ${signal.rank}`),
    ),
  );
}

const atMost = 100; // that the server tells at once

// The newest memories of a namespace, with more on demand; `narrow` shows those with some words, `load` tells of changes.
// `granted`: whoever may use the agent may read it, so that reading it is not recorded.
export function newest(ns, { exact = false, where = false, granted = false, none = "There is nothing here yet." } = {}) {
  const list = h("ul.plain"),
    notice = h("div"),
    note = (shown) => notice.replaceChildren((!granted && recorded(shown.map((memory) => memory.namespace))) || ""),
    more = button("Show more", () => load(cursor)),
    count = h("p.soft");
  let shown = [],
    cursor = null,
    words = "",
    drawn = false,
    turn = 0;
  const fits = (memory) =>
    words
      .split(" ")
      .every((word) =>
        `${memory.key} ${gist(memory, 5000)} ${JSON.stringify(memory.value)}`.toLowerCase().includes(word),
      );
  const draw = () => {
    const found = words ? shown.filter(fits) : shown;
    list.replaceChildren(...found.map((memory) => entry(memory, { where })));
    note(found);
    count.textContent = found.length ? "" : words ? "Nothing here fits." : none;
    more.hidden = cursor === null || words !== "";
  };
  async function load(after_cursor = null, limit = 20) {
    const mine = ++turn,
      page = await get("/v1/memories/newest", { ns, exact: exact || undefined, limit, after_cursor });
    if (mine !== turn) return false;
    const fresh = page.items,
      same = (memory, n) => memory.id === shown[n]?.id && memory.expires_at === shown[n].expires_at;
    if (drawn && after_cursor === null && fresh.every(same) && [shown.length, atMost].includes(fresh.length))
      return false; // who reads it, or is at a link of it by keys, is left alone
    shown = after_cursor === null ? fresh : [...shown, ...fresh];
    cursor = page.after_cursor ?? null;
    drawn = true;
    draw();
    return true;
  }
  async function narrow(text) {
    words = text.trim().toLowerCase();
    if (!words || cursor === null) return draw();
    const mine = ++turn; // there is more than is shown, so the server looks
    const found = await post("/v1/memories/search", { namespace_prefix: ns, query: text.trim(), exact, limit: 50 });
    if (mine !== turn) return;
    list.replaceChildren(...found.items.map((memory) => entry(memory, { where })));
    note(found.items);
    count.textContent = `${counted(found.items.length, "memory", "memories")} found by meaning and words${found.unindexed ? `; ${found.unindexed} have no index text` : ""}`;
    more.hidden = true;
  }
  return {
    node: h("div", notice, count, list, more),
    load,
    narrow,
    again: () => load(null, Math.min(atMost, Math.max(20, shown.length))),
  };
}

// How many seconds are left until then; undefined where that is never.
export const left = (expires_at) =>
  expires_at ? Math.max(1, Math.ceil((new Date(expires_at) - Date.now()) / 1000)) : undefined;

export const written = ({ namespace, key, value, index, expires_at }) => ({
  namespace,
  key,
  value,
  ...(index && Object.keys(index).length ? { index } : {}),
  ttl_seconds: left(expires_at),
});

// Says what was done, with the way back to what was there `before`: null where nothing was. Nobody else's change is undone.
export function undoable(text, { namespace: ns, key, revision }, before, again) {
  say(text, async () => {
    if (before === null) await del("/v1/memories", { ns, key, expected_revision: revision });
    else await put("/v1/memories", { ...written(before), expected_revision: revision });
    again();
  });
}
