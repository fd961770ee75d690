// For admins and auditors: users' data, policies, keys, the index, and the audit log.

import { at, del, get, post, put } from "./api.js";
import { to } from "./app.js";
import {
  ask,
  button,
  plural,
  download,
  element,
  failure,
  field,
  form,
  h,
  input,
  json,
  link,
  number,
  say,
  select,
  formatNamespace,
  table,
  time,
} from "./dom.js";
import { entry, auditNotice } from "./memories.js";

const pages = { people: "People", policies: "Policies", keys: "Keys", index: "Index", audit: "Audit log" };
const show = { people, policies, keys, index, audit };

export default async function admin(params, context) {
  const page = params.get("page") in pages ? params.get("page") : "people";
  return h(
    "div",
    element(
      "nav.tabs",
      { "aria-label": "Administration" },
      Object.entries(pages).map(([name, text]) =>
        link(text, to("admin", { page: name }), { "aria-current": name === page ? "page" : null }),
      ),
    ),
    await show[page](params, context),
  );
}

// People: what is stored about them, export, and the right to be forgotten

async function people(params, { me, go, again }) {
  const user = params.get("user"),
    looking = form(
      (given) => go({ page: "people", user: given.get("user") }),
      h(
        "div.row.card",
        field("User", input({ name: "user", value: user ?? "", required: true })),
        h("button.main", "Show their data"),
      ),
    );
  if (!user) {
    const stats = await get("/v1/admin/stats");
    return h(
      "div",
      looking,
      table(
        "Stored data by root segment",
        ["root", "memories", "versions", "bytes"],
        stats.roots.map((root) => [root.root, number(root.memories), number(root.versions), number(root.bytes)]),
      ),
    );
  }
  const held = await get(at("admin", "users", user)),
    result = h("div");
  const rooms = (caption, list) =>
    list.length > 0 &&
    table(
      caption,
      ["namespace", "memories", "versions", "bytes"],
      list.map((each) => [formatNamespace(each.namespace), number(each.memories), number(each.versions), number(each.bytes)]),
    );
  const review = element(
    "details.card",
    {
      ontoggle: async () => {
        if (review.open && !read.hasChildNodes()) await more();
      },
    },
    h("summary", "Read their memories (this is recorded in the audit log)"),
    h("div"),
  );
  const read = review.lastChild;
  const more = async (after_cursor) => {
    const page = await get(at("admin", "users", user, "memories"), { after_cursor, limit: 20 });
    const items = page.items.map((memory) =>
      entry(memory, {
        where: true,
        actions: me.admin
          ? [
              button(
                "Remove",
                async () => {
                  if (
                    await ask(
                      "Remove this memory for good?",
                      "This deletes every version, is audited, and cannot be undone.",
                      { yes: "Remove" },
                    )
                  ) {
                    await del(at("admin", "users", user, "memories", memory.id));
                    say("Removed.");
                    again();
                  }
                },
                { class: "danger" },
              ),
            ]
          : [],
      }),
    );
    read.append(h("ul.plain", items.length ? items : h("li", "There are no more.")));
    if (items.length === 20)
      read.append(
        button("Show more", (event) => {
          event.target.remove();
          more(page.after_cursor);
        }),
      );
  };
  return h(
    "div",
    looking,
    h(
      "section.card",
      h("h2", `Data of ${user}`),
      h(
        "p",
        `${plural(held.memories, "memory", "memories")} in ${plural(held.versions, "version")}, ${number(held.bytes)} bytes; ${plural(held.shared, "version")} in rooms of others; ${plural(held.api_keys, "API key")}; ${held.key ? "encrypted with their own key" : "no encryption key"}.`,
      ),
      held.first_written && h("p.soft", "First written ", time(held.first_written), ", last ", time(held.last_written)),
      h(
        "div.row",
        link("Export everything", at("admin", "users", user, "export"), { download: `${user}.jsonl` }),
        me.admin && button(`Erase ${user} …`, () => wipe(user, result), { class: "danger" }),
      ),
      auditNotice([["user", user]]),
    ),
    result,
    rooms("Their rooms", held.namespaces),
    rooms("What they wrote into rooms of others", held.shared_rooms),
    review,
  );
}

async function wipe(user, result) {
  try {
    const path = at("admin", "users", user, "wipe"),
      would = await post(path, { dry_run: true });
    const counts = Object.entries(would.removed)
      .filter(([, n]) => n)
      .map(([name, n]) => `${number(n)} ${name.replaceAll("_", " ")}`)
      .join(", ");
    if (
      !(await ask(
        `Erase ${user} for good?`,
        `This removes ${counts || "nothing but the key"}, and destroys the key that their data is encrypted with. It cannot be undone, not even by restoring a backup.`,
        { yes: "Erase for good", typed: user },
      ))
    )
      return;
    const receipt = await post(path, { wait: true });
    result.replaceChildren(
      h(
        "section.card",
        h("h2", "Receipt"),
        json(receipt),
        button("Save the receipt", () => download(`receipt-${user}.json`, JSON.stringify(receipt, null, 2))),
      ),
    );
  } catch (error) {
    result.replaceChildren(failure(error));
  }
}

// Policies, with a dry run

async function policies(params, { me, again }) {
  const now = await get("/v1/admin/policies"),
    trouble = h("div"),
    answer = h("div"),
    names = ["authz", "attributes", "filter"];
  const texts = Object.fromEntries(
    names.map((name) => [name, element("textarea.tall", { spellcheck: "false", readonly: !me.admin }, now[name])]),
  );
  const changed = () =>
    Object.fromEntries(
      names.filter((name) => texts[name].value !== now[name]).map((name) => [name, texts[name].value]),
    );
  const tried = (work) => async () => {
    try {
      trouble.replaceChildren();
      await work();
    } catch (error) {
      trouble.replaceChildren(failure(error));
    }
  };
  const question = element(
    "textarea.tall",
    { spellcheck: "false" },
    JSON.stringify(
      {
        operation: "read",
        namespace: ["user", "alice", "notes"],
        key: "tea",
        context: { user_id: "bob", client_id: null, agent: null, grants: [], jwt_claims: {} },
      },
      null,
      2,
    ),
  );
  return h(
    "div",
    h("p.soft", `Version ${now.version}; put by an admin: ${now.stored.join(", ") || "none"}.`),
    trouble,
    names.map((name) =>
      element(
        "details.card",
        { open: name === "authz" },
        h("summary", `${name}.rego`),
        field(`Text of ${name}.rego`, texts[name]),
      ),
    ),
    me.admin &&
      h(
        "section.card",
        h("h2", "Dry run"),
        field("Input", question),
        button(
          "Test the policies above",
          tried(async () =>
            answer.replaceChildren(
              json(await post("/v1/admin/policies/test", { input: JSON.parse(question.value), ...changed() })),
            ),
          ),
        ),
        answer,
      ),
    me.admin &&
      h(
        "div.row",
        button(
          "Activate everywhere",
          tried(async () => {
            if (
              await ask("Activate these policies?", "Every worker and node will use them at once.", {
                yes: "Activate",
              })
            ) {
              await put("/v1/admin/policies", changed());
              say("Activated.");
              again();
            }
          }),
          { class: "main" },
        ),
      ),
  );
}

// Keys that encrypt data keys, and API keys

async function keys(params, { me, again }) {
  const [wrapping, { keys: letting }] = await Promise.all([get("/v1/admin/keys"), get("/v1/admin/apikeys")]),
    made = h("div");
  const create = async (given) => {
    try {
      const { key } = await post("/v1/admin/apikeys", {
        client: given.get("client"),
        user: given.get("user") || undefined,
        roles: given.get("role") ? [given.get("role")] : [],
      });
      made.replaceChildren(h("div.card", h("p", "This is shown once:"), element("pre", { tabindex: "0" }, key)));
    } catch (error) {
      made.replaceChildren(failure(error));
    }
  };
  return h(
    "div",
    table(
      "Key-encryption keys",
      ["id", "data keys", ""],
      wrapping.keys.map((key) => [key.id, number(key.data_keys), key.active ? "active" : ""]),
    ),
    me.admin &&
      button("Wrap every data key with a new key", async () => {
        const done = await post("/v1/admin/keys/rotate");
        say(`Done: ${JSON.stringify(done)}`);
        again();
      }),
    table(
      "API keys",
      ["client", "user", "roles", "created", ""],
      letting.map((key) => [
        key.client,
        key.user ?? (key.trusted ? "any" : ""),
        key.roles.join(", "),
        time(key.created_at),
        me.admin
          ? button(
              "Revoke",
              async () => {
                if (
                  await ask("Revoke this key?", `${key.client} loses access within a second.`, { yes: "Revoke" })
                ) {
                  await del(at("admin", "apikeys", key.id));
                  again();
                }
              },
              { class: "danger" },
            )
          : "",
      ]),
    ),
    me.admin &&
      form(
        create,
        h(
          "div.row.card",
          field("Client", input({ name: "client", required: true })),
          field("User", input({ name: "user" })),
          field("Role", select([["", "none"], ["auditor"], ["admin"]], "", { name: "role" })),
          h("button", "Create an API key"),
        ),
      ),
    made,
  );
}

async function index(params, { me, again }) {
  const state = await get("/v1/admin/index");
  return h(
    "div",
    h(
      "section.card",
      h(
        "p",
        `${number(state.indexed)} memories are indexed by ${state.serving ?? "no model"}; ${number(state.waiting)} wait`,
        state.oldest_waiting ? [", the oldest since ", time(state.oldest_waiting)] : "",
        `; ${number(state.parked)} are parked.`,
      ),
      me.admin &&
        button("Index waiting and parked texts now", async () => {
          await post("/v1/admin/index/trigger");
          again();
        }),
    ),
    state.parked_items.length > 0 &&
      table(
        "Parked",
        ["namespace", "key", "tries", "why"],
        state.parked_items.map((item) => [formatNamespace(item.namespace), item.key, item.tries, item.error]),
      ),
  );
}

async function audit() {
  const shown = h("div"),
    entries = [],
    heads = ["when", "who", "what", "about", "details"];
  const load = async (after_cursor) => {
    const page = await get("/v1/admin/audit", { after_cursor, limit: 50 });
    entries.push(
      ...page.entries.map((each) => [
        time(each.at),
        each.actor ?? "not named",
        each.action,
        each.subject ?? "",
        JSON.stringify(each.details),
      ]),
    );
    shown.replaceChildren(
      table("Who did what, newest first", heads, entries),
      page.after_cursor ? button("Show more", () => load(page.after_cursor)) : "",
    );
  };
  await load();
  return shown;
}
