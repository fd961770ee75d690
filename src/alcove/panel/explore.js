// The tree of namespaces with counts, the memories of one, and search with each signal's share of the score.

import { follow, get, post, put } from "./api.js";
import { to } from "./app.js";
import {
  button,
  plural,
  element,
  empty,
  failure,
  field,
  firstMemory,
  form,
  h,
  input,
  link,
  number,
  parseNamespace,
  select,
  formatNamespace,
} from "./dom.js";
import { entry, newest, auditNotice, sayWithUndo } from "./memories.js";

const page = 100;

export default async function explore(params, { me, go, until }) {
  const ns = params.getAll("ns"),
    words = params.get("q") ?? "",
    mode = params.get("mode") ?? "hybrid";
  const list = words ? null : newest(ns, { where: true });
  const [tree, shown] = await Promise.all([
    branches([], ns),
    words ? searchResults(ns, words, mode) : list.load().then(() => list.node),
  ]);
  if (list) until(follow(ns, list.again));
  if (!ns.length && !tree.children.length)
    return h(
      "div",
      empty("Nothing is stored yet", "Two lines store a memory that search finds by meaning:", firstMemory),
      adding(me.user ? ["user", me.user, "notes"] : [], go),
    );
  const query = input({ type: "search", name: "q", value: words, placeholder: "what are you looking for?" });
  const search = form(
    (given) => go({ ns, q: given.get("q"), mode: given.get("mode") }),
    h(
      "div.row",
      h("div.grow", field(ns.length ? `Search in ${formatNamespace(ns)}` : "Search everything you can read", query)),
      field(
        "Rank by",
        select(
          [
            ["hybrid", "meaning and words"],
            ["semantic", "meaning"],
            ["keyword", "words"],
          ],
          mode,
          { name: "mode" },
        ),
      ),
      h("button.main", "Search"),
    ),
  );
  return h(
    "div.two",
    element(
      "aside.side",
      { "aria-label": "Namespaces" },
      h("h2", "Namespaces"),
      link("all", to("explore"), { "aria-current": ns.length ? null : "true" }),
      tree,
    ),
    h(
      "div",
      search,
      h("h2", words ? "Results" : ns.length ? `Newest in ${formatNamespace(ns)}` : "Newest"),
      shown,
      adding(ns, go),
    ),
  );
}

async function searchResults(ns, query, mode) {
  const answer = await post("/v1/memories/search", { namespace_prefix: ns, query, mode, limit: 30, explain: true });
  const notices = [
    answer.degraded,
    answer.unindexed &&
      `No search by words or meaning finds ${plural(answer.unindexed, "memory", "memories")} here without index text.`,
  ];
  return h(
    "div",
    auditNotice(answer.items.map((memory) => memory.namespace)),
    notices.filter(Boolean).map((text) => h("p.soft", text)),
    answer.items.length
      ? h(
          "ul.plain",
          answer.items.map((memory) => entry(memory, { where: true })),
        )
      : empty("Nothing was found", "Try other words, or a namespace further up."),
  );
}

// The namespaces right below one; those on the path to the selected one are open.
async function branches(ns, open) {
  // a namespace that is alone on its level is open, too
  const list = h("ul.tree");
  const load = async (after) => {
    const { branches: found } = await get("/v1/memories/tree", { ns, limit: page, after });
    list.append(...(await Promise.all(found.map((each) => branch(each, open, found.length === 1)))));
    if (found.length === page) {
      const more = h(
        "li",
        button("more …", async () => {
          more.remove();
          await load(found.at(-1).namespace.at(-1));
        }),
      );
      list.append(more);
    }
  };
  await load();
  return list;
}

async function branch({ namespace, here, memories }, open, alone) {
  const onTheWay = namespace.every((segment, n) => segment === open[n]),
    leads = alone || onTheWay;
  const name = namespace.at(-1),
    deeper = memories > here;
  const below = h("div");
  const twist = deeper
    ? button(
        leads ? "▾" : "▸",
        async () => {
          const opens = !below.hasChildNodes();
          below.replaceChildren(...(opens ? [await branches(namespace, [])] : []));
          twist.textContent = opens ? "▾" : "▸";
          twist.setAttribute("aria-expanded", opens);
        },
        { class: "twist", "aria-label": `Namespaces below ${name}`, "aria-expanded": String(leads) },
      )
    : h("span.twist", " ");
  if (leads && deeper) below.append(await branches(namespace, open));
  const current = onTheWay && namespace.length === open.length;
  return h(
    "li",
    twist,
    link(name, to("explore", { ns: namespace }), { "aria-current": current ? "true" : null }),
    " ",
    h("small", number(memories)),
    below,
  );
}

function adding(ns, go) {
  const trouble = h("div");
  const save = async (given) => {
    try {
      const namespace = parseNamespace(given.get("namespace")),
        key = given.get("key"),
        days = Number(given.get("days"));
      const entry = await put("/v1/memories", {
        namespace,
        key,
        value: JSON.parse(given.get("value")),
        index: given.get("index") === "on",
        ttl_seconds: days ? Math.round(days * 86400) : undefined,
        create_only: true,
      });
      sayWithUndo("Stored.", entry, null, () => go({ ns: namespace }, "explore"));
      go({ ns: namespace, key }, "memory");
    } catch (error) {
      trouble.replaceChildren(failure(error));
    }
  };
  return h(
    "details.card",
    h("summary", "Add a memory"),
    form(
      save,
      trouble,
      field(
        "Namespace",
        input({ name: "namespace", required: true, value: formatNamespace(ns) }),
        "Segments separated by colons, such as user:alice:notes",
      ),
      field("Key", input({ name: "key", required: true })),
      field(
        "Value",
        element("textarea", { name: "value", required: true, spellcheck: "false" }, '{\n  "text": ""\n}'),
        "A JSON object",
      ),
      field(
        "Expires after days",
        input({ name: "days", type: "number", min: "0", step: "any" }),
        "Never, if left empty",
      ),
      h(
        "label",
        element("input", { type: "checkbox", name: "index", checked: true }),
        " Index its texts for search (they are then stored in plain text)",
      ),
      h("p", h("button.main", "Store")),
    ),
  );
}
