// One memory: its value now or at a moment, every version with what changed, and forms that change it.

import { del, memory as at, post, put } from "./api.js";
import { to } from "./app.js";
import { ask, button, plural, element, failure, field, form, h, input, json, link, number, say, formatNamespace, time } from "./dom.js";
import { formatAuthor, secondsUntil, auditNotice, sayWithUndo, toRequest } from "./memories.js";

export default async function memory(params, { again }) {
  const ns = params.getAll("ns"),
    key = params.get("key") ?? "";
  const { versions, after_cursor } = await at.history(ns, key);
  const up = link(`← ${formatNamespace(ns)}`, to("explore", { ns }));
  if (!versions.length) return h("div", up, h("p", "There is no memory with this key, and no history of one."));
  const shown = h("div"),
    newest = versions[0],
    live = newest.value !== null;
  const oldest = versions.length - 1;
  const slider = element("input", {
    type: "range",
    min: 0,
    max: oldest,
    value: oldest,
    oninput: () => travel(versions[oldest - slider.valueAsNumber]),
  });
  const when = h("output");
  const look = (each, there) => {
    shown.replaceChildren(version(each, there, each === newest && live));
    when.replaceChildren(`as of ${new Date(each.created_at).toLocaleString()}, revision ${each.revision}`);
    slider.setAttribute("aria-valuetext", when.textContent);
  };
  // Shows what was stored at the moment of a version.
  const travel = async (each) => {
    const there = await at.get(ns, key, each.created_at).catch((error) => (error.status === 404 ? null : error));
    if (versions[oldest - slider.valueAsNumber] !== each) return;
    if (there instanceof Error) shown.replaceChildren(failure(there));
    else look(each, there);
  };
  look(newest, live ? newest : null);
  return h(
    "div",
    up,
    auditNotice([ns]),
    h("p", h("b", key)),
    oldest > 0 && h("div.card", field("Time travel", slider), when),
    shown,
    live && changing(newest, again),
    h("h2", `History (${number(versions.length)}${after_cursor ? " newest" : ""})`),
    h(
      "ol.plain",
      versions.map((each, n) =>
        h(
          "li",
          happened(each),
          changes(versions[n + 1]?.value ?? {}, each.value ?? {}),
          each.value !== null &&
            n > 0 &&
            button("Restore this", () => restore(each, newest, live, again)),
        ),
      ),
    ),
    !live && h("p.soft", "This memory was deleted or has expired. Restore a version to bring it back."),
  );
}

const happened = (each) =>
  h(
    "div.meta",
    h(
      "span.kind",
      `${each.revision}. ${{ add: "added", update: "changed", delete: "deleted", expired: "expired" }[each.kind]}`,
    ),
    h("span", formatAuthor(each.written_by)),
    time(each.created_at),
  );

// A version, and the memory at its moment, which is null if there was none.
function version(each, there, current) {
  return h(
    "section.card",
    h("h2", current ? "Now" : `Revision ${each.revision}`),
    happened(each),
    there?.expires_at && h("p", "Expires ", time(there.expires_at)),
    there ? json(there.value) : h("p", "Nothing was there."),
    Object.keys(there?.index ?? {}).length > 0 && [h("h3", "Index text (stored in plain text)"), json(there.index)],
    Object.keys(there?.attributes ?? {}).length > 0 && [
      h("h3", "Attributes that the policy derived"),
      json(there.attributes),
    ],
  );
}

// The fields that differ between two versions, by their paths.
function changes(old, now) {
  const before = flat(old),
    after = flat(now),
    names = [...new Set([...before.keys(), ...after.keys()])].filter((name) => before.get(name) !== after.get(name));
  return h(
    "ul",
    names
      .slice(0, 50)
      .map((name) =>
        h(
          "li",
          `${name}: `,
          before.has(name) && h("span.removed", cut(before.get(name))),
          " ",
          after.has(name) && h("span.added", cut(after.get(name))),
        ),
      ),
    names.length > 50 && h("li", `and ${number(names.length - 50)} more`),
  );
}

const cut = (text) => (text.length > 300 ? `${text.slice(0, 300)}…` : text);

function flat(value, path = "", found = new Map()) {
  if (value !== null && typeof value === "object" && Object.keys(value).length && found.size < 2000)
    for (const [name, each] of Object.entries(value)) flat(each, path ? `${path}.${name}` : name, found);
  else if (path) found.set(path, typeof value === "string" ? value : JSON.stringify(value));
  return found;
}

// An expiry in the past is not restored; it would delete the memory at once.
async function restore(each, newest, live, again) {
  const expires_at = new Date(each.expires_at) > Date.now() ? each.expires_at : null,
    expected_revision = live ? newest.revision : 0;
  const entry = await put("/v1/memories", { ...toRequest({ ...each, expires_at }), expected_revision });
  sayWithUndo(`Revision ${each.revision} is restored.`, entry, live ? newest : null, again);
  again();
}

// The texts of a value by path, in the same way as the store extracts them.
function texts(node, path = "", found = Object.create(null)) {
  if (typeof node === "string" && node.trim()) found[path] = path in found ? `${found[path]}\n${node}` : node;
  else if (Array.isArray(node)) node.forEach((each) => texts(each, path, found));
  else if (node !== null && typeof node === "object")
    for (const [name, each] of Object.entries(node)) texts(each, path ? `${path}.${name}` : name, found);
  return found;
}

// What to index of a changed value: the same fields as before, so that encrypted fields stay encrypted.
function foundBy({ index, value }) {
  const names = Object.keys(index ?? {}),
    all = texts(value);
  if (names.some((name) => index[name] !== all[name])) return index; // texts that were chosen by hand
  return names.length > 0 && (names.length === Object.keys(all).length || names);
}

function changing(newest, again) {
  const trouble = h("div"),
    place = { namespace: newest.namespace, key: newest.key };
  const tried = (work) => async (given) => {
    try {
      await work(given);
      again();
    } catch (error) {
      trouble.replaceChildren(failure(error));
    }
  };
  const save = tried(async (given) => {
    const entry = await put("/v1/memories", {
      ...place,
      value: JSON.parse(given.get("value")),
      index: foundBy(newest),
      ttl_seconds: secondsUntil(newest.expires_at),
      expected_revision: newest.revision,
    });
    sayWithUndo("Stored as a new version.", entry, newest, again);
  });
  const expire = tried(async (given) => {
    const days = Number(given.get("days")),
      set = (ttl_seconds) => post("/v1/memories/touch", { ...place, ttl_seconds });
    await set(days ? Math.round(days * 86400) : undefined);
    say(days ? `It expires in ${plural(days, "day")}.` : "It never expires.", async () => {
      await set(secondsUntil(newest.expires_at));
      again();
    });
  });
  const remove = tried(async () => {
    if (!(await ask("Delete this memory?", "Its history stays, so you can restore it.", { yes: "Delete" })))
      return;
    await del("/v1/memories", { ns: newest.namespace, key: newest.key, expected_revision: newest.revision });
    sayWithUndo("Deleted.", { ...place, revision: 0 }, newest, again);
  });
  const text = JSON.stringify(newest.value, null, 2);
  return h(
    "section",
    trouble,
    h(
      "details.card",
      h("summary", "Change, set an expiry, or delete"),
      text.length > 200000
        ? h("p", "This value is too large to change here.")
        : form(
            save,
            field("Value", element("textarea", { name: "value", spellcheck: "false" }, text)),
            h("button.main", "Store"),
          ),
      form(
        expire,
        h(
          "div.row",
          field(
            "Expires after days",
            input({ name: "days", type: "number", min: "0", step: "any" }),
            "Never, if left empty",
          ),
          h("button", "Set"),
        ),
      ),
      h("p", button("Delete", remove, { class: "danger" })),
    ),
  );
}
