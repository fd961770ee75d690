// An agent's rooms, as somebody who talks with it may see them; an admin may look at another user's.

import { at, follow, get } from "./api.js";
import { to } from "./app.js";
import { counted, empty, failure, field, form, h, input, link, select, spelled } from "./dom.js";
import { newest } from "./memories.js";

const streams = 3; // a browser keeps six connections to one server, for everything

const first = `# agents.yaml, given with: alcove serve --agents agents.yaml
agents: [{name: helper, memory: {private: {}, facts: {enabled: true}, long_term: {}}}]`;

// Which agent a view is about: its name, and the field to choose another by; or what to say where there is none.
export async function chosen(asked, props) {
  const { agents } = await get("/v1/agents");
  const none = "Agents are described in a file, each with its rooms. With one, this page has something to show.";
  if (!agents.length) return { none: empty("No agents yet", none, first) };
  const name = asked.get("agent") ?? agents[0].name;
  const names = agents.map((each) => [each.name]);
  return { name, choose: field("Agent", select(names, name, props)) };
}

// Whose memory it is: an admin may look at another user's.
export const whose = (user, go) =>
  form((given) => go(given.get("user")), field("User", input({ name: "user", value: user }), "Enter shows theirs"));

export default async function agents(asked, { me, go, until }) {
  const user = asked.get("user") ?? "";
  const { none, name, choose } = await chosen(asked, { onchange: (event) => go({ agent: event.target.value, user }) });
  if (none) return none;
  const filter = input({ type: "search", placeholder: "part of a memory" });
  const other = user && user !== me.user;
  const [shown, summary] = await Promise.all([
    other ? theirs(name, user) : mine(name),
    other ? null : get(at("agents", name, "summary")).catch(() => null),
  ]);
  const rooms = shown.map((each) => room(each, until));
  filter.addEventListener("input", () => rooms.forEach((each) => each.narrow(filter.value)));
  return h(
    "div",
    h(
      "div.row.card",
      choose,
      me.admin && whose(user || me.user, (user) => go({ agent: name, user })),
      h("div.grow", field("Filter", filter)),
      link("See its prompt", to("prompt", { agent: name })),
      link("Its conversations", to("conversations", { agent: name, user })),
    ),
    rooms.length
      ? rooms.map((each) => each.node)
      : empty(
          "Nothing is remembered here yet",
          `Let ${name} remember something:`,
          `memory = alcove.connect("${location.origin}").agent("${name}")\nmemory.remember([{"role": "user", "content": "I drink green tea."}])`,
        ),
    summary &&
      h(
        "details.room",
        h(
          "summary",
          h("span.kind", "summary of conversations "),
          h("span.soft", counted(summary.points?.length ?? 0, "point")),
        ),
        h(
          "div",
          points(summary),
          (summary.pending ?? []).length > 0 && h("p.soft", `Not in it yet: ${summary.pending.join(", ")}`),
        ),
      ),
  );
}

export const points = (summary) =>
  (summary.points ?? []).length
    ? h(
        "ul",
        summary.points.map((point) => h("li", point.text ?? JSON.stringify(point))),
      )
    : h("p.soft", "It is empty: a conversation that has ended is summarised here.");

const mine = async (name) => (await get(at("agents", name, "memory"))).rooms;

const kinds = { agent: "private", user: "long-term", "agent-room": "agent" };

// An admin sees another user's rooms by the namespaces that are theirs and name the agent.
async function theirs(name, user) {
  const held = await get(at("admin", "users", user));
  return held.namespaces
    .filter((each) => each.namespace.includes(name) && !["turns", "summary", "calls"].includes(each.namespace[0]))
    .map((each) => ({
      room: kinds[each.namespace[0]] ?? each.namespace[0],
      namespace: each.namespace,
      memories: each.memories,
    }));
}

const exactly = ["private", "facts", "long-term"];

function room({ room: kind, namespace, memories }, until) {
  const list = newest(namespace, { exact: exactly.includes(kind), where: !exactly.includes(kind) }),
    below = h("div");
  const size = h("span.soft", counted(memories, "memory", "memories"));
  let open = false;
  const fresh = async () => {
    await list.again();
    const branches = exactly.includes(kind)
      ? (await get("/v1/memories/tree", { ns: namespace, limit: 100 })).branches
      : [];
    below.replaceChildren(
      ...branches.map(
        (each) => room({ room: each.namespace.at(-1), namespace: each.namespace, memories: each.memories }, until).node,
      ),
    );
  };
  const node = h(
    "details.room",
    {
      ontoggle: async () => {
        if (!node.open || open) return;
        open = true;
        try {
          await fresh();
          if (room.streams < streams) {
            room.streams += 1;
            const end = follow(namespace, async () => {
              await fresh();
              size.textContent = "just changed";
            });
            until(() => {
              room.streams -= 1;
              end();
            });
          }
        } catch (error) {
          below.replaceChildren(failure(error));
        }
      },
    },
    h("summary", h("span.kind", kind), " ", h("span", spelled(namespace)), " ", size),
    h("div", list.node, below),
  );
  return {
    node,
    narrow: (text) => {
      if (open) list.narrow(text);
      else if (text && memories) node.open = true;
    },
  };
}
room.streams = 0;
