// One memory: what it holds now or held at a moment, every version with what changed, and what may be done to it.

import { memory as at, post, put } from "./api.js";
import { to } from "./app.js";
import { ask, button, failure, field, form, h, input, json, link, number, say, spelled, time } from "./dom.js";
import { author, remove, written } from "./memories.js";

export default async function memory(asked, { again }) {
  const ns = asked.getAll("ns"),
    key = asked.get("key") ?? "";
  const { versions, after_cursor } = await at.history(ns, key);
  const up = link(`← ${spelled(ns)}`, to("explore", { ns }));
  if (!versions.length) return h("div", up, h("p", "There is no memory of this name any more, and no history of one."));
  const shown = h("div"),
    newest = versions[0],
    live = newest.value !== null;
  const oldest = versions.length - 1;
  const look = (n) => shown.replaceChildren(version(versions[n], versions[n + 1], n === 0 && live));
  const slider = h("input", {
    type: "range",
    min: 0,
    max: oldest,
    value: oldest,
    "aria-label": "Moment",
    oninput: () => {
      look(oldest - slider.valueAsNumber);
      moment();
    },
  });
  const when = h("output"),
    moment = () => {
      const seen = versions[oldest - slider.valueAsNumber];
      when.replaceChildren(`revision ${seen.revision}, `, time(seen.created_at));
    };
  look(0);
  moment();
  return h(
    "div",
    up,
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
            button("Restore this", async () => {
              await restore(each, newest);
              say(`What revision ${each.revision} held is stored again.`);
              again();
            }),
        ),
      ),
    ),
    !live && h("p.soft", "It was deleted or has expired; restoring a version brings it back."),
  );
}

const happened = (each) =>
  h(
    "div.meta",
    h(
      "span.kind",
      `${each.revision}. ${{ add: "added", update: "changed", delete: "deleted", expired: "expired" }[each.kind]}`,
    ),
    h("span", author(each.written_by)),
    time(each.created_at),
  );

function version(each, before, current) {
  return h(
    "section.card",
    h("h2", current ? "Now" : `Revision ${each.revision}`),
    happened(each),
    each.expires_at && h("p", "Expires ", time(each.expires_at)),
    each.value === null ? h("p", "Nothing was there.") : json(each.value),
    each.index && Object.keys(each.index).length > 0 && [h("h3", "Found by, in plain text"), json(each.index)],
    each.attributes && [h("h3", "Attributes that the policy derived"), json(each.attributes)],
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

const restore = (each, newest) =>
  put("/v1/memories", { ...written(each), ...(newest.value === null ? {} : { expected_revision: newest.revision }) });

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
    const indexed = newest.index && Object.keys(newest.index).length > 0;
    await put("/v1/memories", {
      ...place,
      value: JSON.parse(given.get("value")),
      index: indexed ? true : undefined,
      expected_revision: newest.revision,
    });
    say("Stored as a new version.", async () => {
      await put("/v1/memories", written(newest));
      again();
    });
  });
  const expire = tried(async (given) => {
    const days = Number(given.get("days"));
    await post("/v1/memories/touch", { ...place, ttl_seconds: days ? Math.round(days * 86400) : undefined });
    say(days ? `It expires in ${days} days.` : "It never expires.");
  });
  const text = JSON.stringify(newest.value, null, 2);
  return h(
    "section",
    trouble,
    h(
      "details.card",
      h("summary", "Change, set an expiry, or delete"),
      text.length > 200000
        ? h("p", "This value is too large to be changed here.")
        : form(
            save,
            field("Value", h("textarea", { name: "value", spellcheck: "false" }, text)),
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
      h(
        "p",
        button(
          "Delete",
          async () => {
            if (
              await ask("Delete this memory?", "Its history stays, and it can be restored from it.", { yes: "Delete" })
            )
              await remove(newest, again);
          },
          { class: "danger" },
        ),
      ),
    ),
  );
}
