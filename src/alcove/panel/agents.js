// An agent's rooms, as somebody who talks with it may see them; an admin may look at another user's.

import { at, follow, get } from "./api.js";
import { to } from "./app.js";
import { counted, element, empty, failure, field, form, h, input, link, select, spelled } from "./dom.js";
import { newest } from "./memories.js";

const most = 3; // streams: a browser keeps six connections to one server, for everything; other rooms are looked at by the clock

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
  form(
    (given) => go(given.get("user")),
    h("div.row", field("User", input({ name: "user", value: user, size: 12 })), h("button", "Show theirs")),
  );

export default async function agents(asked, { me, go, until }) {
  const user = asked.get("user") ?? "";
  const { none, name, choose } = await chosen(asked, { onchange: (event) => go({ agent: event.target.value, user }) });
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
    if (streams++ < most) until(follow(namespace, again));
  });
  const tick = setInterval(() => document.hidden || again().catch(() => null), 5000);
  until(() => clearInterval(tick));
  filter.addEventListener("input", () => rooms.narrow(filter.value));
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

// Another user's rooms are where one's own are, with their name in it; their child namespaces are their own, and others
// of theirs may name the agent, too.
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

const child = "private, older"; // a child namespace, which the agent reads while the private one is empty
const hint = "The agent reads this while the private namespace is empty: the newest of each key.",
  nobodys = "Nobody owns this namespace; the count is of what this user wrote in it.";

const exactly = ["private", child, "facts", "long-term"],
  scratch = ["agent", "session", "global", "workflow", "swarm", "debate"];

// Rooms one below the other; when it is drawn again, those that are there stay as they are, open or not.
function shelf(found, opened) {
  const node = h("div"),
    rooms = new Map();
  const draw = (found) => {
    for (const each of found) {
      const place = spelled(each.namespace);
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
      size.textContent = counted(n, "memory", "memories");
    };
  count(memories);
  let open = false,
    words = "";
  const hidden = kind === child && !namespace.includes("u"); // nobody's: only the agent finds what one user wrote there
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
    h("summary", h("span.kind", scratch.includes(kind) ? `scratch (${kind})` : kind === child ? "child namespace" : kind), " ", h("span", spelled(namespace)), " ", size),
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
