// An agent's rooms for the user who is signed in; an admin can look at those of another user.

import { at, follow, get } from "./api.js";
import { to } from "./app.js";
import { plural, element, empty, failure, field, form, h, input, link, select, formatNamespace } from "./dom.js";
import { newest } from "./memories.js";

const maxStreams = 3; // a browser has six connections to a server, for everything; other rooms are polled

const first = `# agents.yaml, for: alcove serve --agents agents.yaml
agents: [{name: helper, memory: {private: {}, facts: {enabled: true}, long_term: {}}}]`;

// The agent of a view: its name and a field to choose another; or a message if there are none.
export async function chooseAgent(params, props) {
  const { agents } = await get("/v1/agents");
  const none = "Describe your agents and their rooms in a file, and this page shows them.";
  if (!agents.length) return { none: empty("No agents yet", none, first) };
  const name = params.get("agent") ?? agents[0].name;
  const names = agents.map((each) => [each.name]);
  return { name, choose: field("Agent", select(names, name, props)) };
}

// A form with which an admin looks at another user's memory.
export const userForm = (user, go) =>
  form(
    (given) => go(given.get("user")),
    h("div.row", field("User", input({ name: "user", value: user, size: 12 })), h("button", "Show")),
  );

export default async function agents(params, { me, go, until }) {
  const user = params.get("user") ?? "";
  const { none, name, choose } = await chooseAgent(params, { onchange: (event) => go({ agent: event.target.value, user }) });
  if (none) return none;
  const filter = input({ type: "search", placeholder: "part of a memory" });
  const other = user && user !== me.user,
    look = async () => {
      const { rooms } = await get(at("agents", name, "memory"));
      const shown = other ? await theirs(rooms, name, me.user, user) : rooms;
      return shown.some(({ room }) => room === child) ? shown.map((each) => ({ ...each, flat: each.room === "private" })) : shown;
    };
  const [found, summary] = await Promise.all([
    look(),
    other ? null : get(at("agents", name, "summary")).catch(() => null),
  ]);
  const again = async () => rooms.draw(await look());
  let streams = 0;
  const rooms = shelf(found, (namespace) => {
    if (streams++ < maxStreams) until(follow(namespace, again));
  });
  const tick = setInterval(() => document.hidden || again().catch(() => null), 5000);
  until(() => clearInterval(tick));
  filter.addEventListener("input", () => rooms.narrow(filter.value));
  return h(
    "div",
    h(
      "div.row.card",
      choose,
      me.admin && userForm(user || me.user, (user) => go({ agent: name, user })),
      h("div.grow", field("Filter", filter)),
      link("See its prompt", to("prompt", { agent: name })),
      link("Its conversations", to("conversations", { agent: name, user })),
    ),
    rooms.node,
    !found.some((each) => each.memories) &&
      empty(
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
          h("span.soft", plural(summary.points?.length ?? 0, "point")),
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
    : h("p.soft", "It is empty. Conversations are summarised here when they end.");

// Another user's rooms: the same namespaces with their name in place of yours, their child namespaces, and any other
// namespace of theirs that names the agent.
async function theirs(rooms, agent, mine, user) {
  const { namespaces } = await get(at("admin", "users", user)),
    owned = (part, n, ns) => part === mine && ["u", "user"].includes(ns[n - 1]),
    within = (ns, room) => room.every((part, n) => part === ns[n]);
  const found = rooms.filter((each) => each.room !== child).map((each) => {
    if (!each.namespace.some(owned)) return each;
    const namespace = each.namespace.map((part, n, ns) => (owned(part, n, ns) ? user : part)),
      deepest = exactly.includes(each.room) ? namespace.length : Infinity;
    const held = namespaces.filter((held) => within(held.namespace, namespace) && held.namespace.length <= deepest);
    return { ...each, namespace, memories: held.reduce((sum, held) => sum + held.memories, 0) };
  });
  const listed = (ns) =>
      found.some(
        (each) => within(ns, each.namespace) && (each.room !== "private" || ns.length === each.namespace.length),
      ),
    below = (ns) => found.some((each) => each.room === "private" && within(ns, each.namespace.slice(0, -2)));
  const more = namespaces.filter(
    ({ namespace: ns }) => (ns.includes(agent) || below(ns)) && !["turns", "calls"].includes(ns[0]) && !listed(ns),
  );
  return [...found, ...more.map((each) => ({ ...each, room: below(each.namespace) ? child : each.namespace[0] }))];
}

const child = "private, older"; // a child namespace; the agent reads it while the private one is empty
const hint = "The agent reads this while the private namespace is empty: the newest of each key.",
  nobodys = "Nobody owns this namespace; the count is of memories that this user wrote.";

const exactly = ["private", child, "facts", "long-term"],
  scratch = ["agent", "session", "global", "workflow", "swarm", "debate"];

// A list of rooms; when it is drawn again, rooms stay open or closed.
function shelf(found, opened) {
  const node = h("div"),
    rooms = new Map();
  const draw = (found) => {
    for (const each of found) {
      const place = formatNamespace(each.namespace);
      if (rooms.has(place)) rooms.get(place).again(each.memories);
      else {
        rooms.set(place, room(each, opened));
        node.append(rooms.get(place).node);
      }
    }
  };
  draw(found);
  return { node, draw, narrow: (text) => rooms.forEach((each) => each.narrow(text)) };
}

function room({ room: kind, namespace, memories, flat }, opened) {
  const list = newest(namespace, {
      exact: exactly.includes(kind),
      where: !exactly.includes(kind),
      granted: ["pool", "team"].includes(kind),
    }),
    below = shelf([], opened),
    trouble = h("div");
  const size = h("span.soft"),
    count = (n) => {
      memories = n;
      size.textContent = plural(n, "memory", "memories");
    };
  count(memories);
  let open = false,
    words = "";
  const hidden = kind === child && !namespace.includes("u"); // it has no owner: only the agent can read what one user wrote there
  const fresh = async () => {
    try {
      if (hidden) return;
      if ((await list.again()) && words) await list.narrow(words);
      if (!exactly.includes(kind) || kind === child || flat) return; // child namespaces are listed by themselves
      const { branches } = await get("/v1/memories/tree", { ns: namespace, limit: 100 });
      below.draw(branches.map((each) => ({ ...each, room: each.namespace.at(-1) })));
      trouble.replaceChildren();
    } catch (error) {
      trouble.replaceChildren(failure(error));
    }
  };
  const node = element(
    "details.room",
    {
      ontoggle: () => {
        if (!node.open || open) return;
        open = true;
        fresh();
        if (!hidden) opened(namespace);
      },
    },
    h("summary", h("span.kind", scratch.includes(kind) ? `scratch (${kind})` : kind === child ? "child namespace" : kind), " ", h("span", formatNamespace(namespace)), " ", size),
    h("div", kind === child && h("p.soft", hint, hidden && ` ${nobodys}`), trouble, !hidden && list.node, below.node),
  );
  return {
    node,
    again: (n) => {
      count(n);
      if (open) fresh();
    },
    narrow: (text) => {
      words = text.trim();
      if (hidden) return;
      if (open) list.narrow(words);
      else if (words && memories) node.open = true;
    },
  };
}
