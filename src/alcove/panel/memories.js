// Lists of memories for several views: newest first, page by page, with actions for each.

import { del, get, me, post, put } from "./api.js";
import { to } from "./app.js";
import { bar, button, plural, element, summarize, h, link, say, formatNamespace, time, toText } from "./dom.js";

export const formatAuthor = (by) =>
  `by ${by?.agent ? `${by.agent} for ` : ""}${by?.user ?? "an unknown user"}${by?.client ? ` through ${by.client}` : ""}`;

const owner = (ns) => (ns[0] === "user" ? ns[1] : ns.includes("u") ? ns[ns.indexOf("u") + 1] : undefined);

// A notice above memories of other users, which the reader's role lets them read; false above their own.
export const auditNotice = (namespaces) =>
  me.auditor &&
  namespaces.some((ns) => ns[0] !== "knowledge" && owner(ns) !== me.user) &&
  element("p.soft", { role: "note" }, "Reading other people's memories is recorded in the audit log.");

export function entry(memory, { where = false, actions = [] } = {}) {
  const value = memory.value ?? {},
    tags = Array.isArray(value.tags) ? value.tags : [];
  return h(
    "li",
    link(summarize(memory), to("memory", { ns: memory.namespace, key: memory.key })),
    h(
      "div.meta",
      where && h("span", formatNamespace(memory.namespace)),
      h("span", memory.key),
      h("span", formatAuthor(memory.written_by)),
      time(memory.created_at),
      memory.expires_at && h("span", "expires ", time(memory.expires_at)),
      typeof value.type === "string" && h("span.tag", value.type),
      tags.map((tag) => h("span.tag", toText(tag))),
    ),
    memory.explain && explained(memory),
    actions.length > 0 && h("div.row", actions),
  );
}

// A hit's relevance to the query, and each signal's share of its score.
function explained(memory) {
  const signals = Object.entries(memory.explain),
    most = Math.max(...signals.map(([, signal]) => signal.score), 1e-9);
  return h(
    "details",
    h(
      "summary",
      `relevance ${Math.round(100 * (memory.relevance ?? 0))} %, similarity ${memory.score === null ? "not known yet" : memory.score.toFixed(2)}`,
    ),
    signals.map(([name, signal]) =>
      bar(name.replaceAll("_", " "), signal.score / most, `${signal.score.toFixed(3)}, rank ${signal.rank}`),
    ),
  );
}

const maxPage = 100; // the most that the server answers with

// The newest memories of a namespace, with more on demand. `narrow` filters by words, `load` returns whether anything changed.
// `granted`: everybody who may use the agent may read it, so reading it is not recorded.
export function newest(ns, { exact = false, where = false, granted = false, none = "There is nothing here yet." } = {}) {
  const list = h("ul.plain"),
    notice = h("div"),
    note = (shown) => notice.replaceChildren((!granted && auditNotice(shown.map((memory) => memory.namespace))) || ""),
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
        `${memory.key} ${summarize(memory, 5000)} ${JSON.stringify(memory.value)}`.toLowerCase().includes(word),
      );
  const draw = () => {
    const found = words ? shown.filter(fits) : shown;
    list.replaceChildren(...found.map((memory) => entry(memory, { where })));
    note(found);
    count.textContent = found.length ? "" : words ? "No memory here matches." : none;
    more.hidden = cursor === null || words !== "";
  };
  async function load(after_cursor = null, limit = 20) {
    const mine = ++turn,
      page = await get("/v1/memories/newest", { ns, exact: exact || undefined, limit, after_cursor });
    if (mine !== turn) return false;
    const fresh = page.items,
      same = (memory, n) => memory.id === shown[n]?.id && memory.expires_at === shown[n].expires_at;
    if (drawn && after_cursor === null && fresh.every(same) && [shown.length, maxPage].includes(fresh.length))
      return false; // nothing changed: keep the reader's place and keyboard focus
    shown = after_cursor === null ? fresh : [...shown, ...fresh];
    cursor = page.after_cursor ?? null;
    drawn = true;
    draw();
    return true;
  }
  async function narrow(text) {
    words = text.trim().toLowerCase();
    if (!words || cursor === null) return draw();
    const mine = ++turn; // only a part is loaded, so the server searches
    const found = await post("/v1/memories/search", { namespace_prefix: ns, query: text.trim(), exact, limit: 50 });
    if (mine !== turn) return;
    list.replaceChildren(...found.items.map((memory) => entry(memory, { where })));
    note(found.items);
    count.textContent = `${plural(found.items.length, "memory", "memories")} found by meaning and words${found.unindexed ? `; ${found.unindexed} have no index text` : ""}`;
    more.hidden = true;
  }
  return {
    node: h("div", notice, count, list, more),
    load,
    narrow,
    again: () => load(null, Math.min(maxPage, Math.max(20, shown.length))),
  };
}

// Seconds until a memory expires; undefined if it never does.
export const secondsUntil = (expires_at) =>
  expires_at ? Math.max(1, Math.ceil((new Date(expires_at) - Date.now()) / 1000)) : undefined;

export const toRequest = ({ namespace, key, value, index, expires_at }) => ({
  namespace,
  key,
  value,
  ...(index && Object.keys(index).length ? { index } : {}),
  ttl_seconds: secondsUntil(expires_at),
});

// Says what was done, and offers to undo it: to restore `before`, or to delete if that is null. If somebody else has written
// since, the undo fails.
export function sayWithUndo(text, { namespace: ns, key, revision }, before, again) {
  say(text, async () => {
    if (before === null) await del("/v1/memories", { ns, key, expected_revision: revision });
    else await put("/v1/memories", { ...toRequest(before), expected_revision: revision });
    again();
  });
}
