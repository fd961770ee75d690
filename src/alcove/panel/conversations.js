// Conversations of an agent with a user: what was said, its summaries, ending and deleting them.

import { at, del, get, post } from "./api.js";
import { to } from "./app.js";
import { ask, button, counted, element, empty, h, link, say, time } from "./dom.js";
import { chosen, points, whose } from "./agents.js";
import { recorded } from "./memories.js";
import { said } from "./prompt.js";

export default async function conversations(asked, { me, go, again }) {
  const user = asked.get("user") || me.user,
    other = user !== me.user;
  const chosenAgent = await chosen(asked, { onchange: (event) => go({ agent: event.target.value, user }) });
  if (chosenAgent.none) return chosenAgent.none;
  const { name: agent, choose } = chosenAgent;
  const id = asked.get("session"),
    sessions = other ? await theirs(agent, user) : (await get(at("agents", agent, "sessions"))).sessions;
  const choosing = h(
    "div.row.card",
    choose,
    me.admin && whose(user, (user) => go({ agent, user })),
    link("See the prompt", to("prompt", { agent, session: id })),
  );
  if (!sessions.length)
    return h(
      "div",
      choosing,
      empty(
        "No conversations yet",
        `What is said to ${agent} is kept by session:`,
        `talk = alcove.connect("${location.origin}").agent("${agent}").in_session("monday")\ntalk.remember([{"role": "user", "content": "I fly to Rome on Friday."}])`,
      ),
    );
  const list = element(
    "nav.side",
    { "aria-label": "Sessions" },
    h(
      "ul.plain",
      sessions.map((each) =>
        h(
          "li",
          link(each.id, to("conversations", { agent, user: other ? user : "", session: each.id }), {
            "aria-current": each.id === id ? "true" : null,
          }),
          h(
            "div.meta",
            h("span", counted(each.messages, "message")),
            each.last_at && time(each.last_at),
            each.ended && h("span", "ended"),
          ),
        ),
      ),
    ),
  );
  const shown = id
    ? await conversation(agent, id, other && user, again, go)
    : h("div", h("p.soft", "Choose a conversation."), !other && (await rolling(agent, again)));
  return h("div", choosing, h("div.two", list, shown));
}

// An admin reads another user's by the namespaces they are kept in.
async function theirs(agent, user) {
  const { branches } = await get("/v1/memories/tree", { ns: ["turns", agent, "u", user], limit: 1000 });
  return branches.map((each) => ({ id: each.namespace.at(-1), messages: each.memories }));
}

async function conversation(agent, id, user, again, go) {
  if (user) {
    const ns = ["turns", agent, "u", user, id],
      { items } = await get("/v1/memories/newest", { ns, limit: 100 });
    return h(
      "div",
      h("h2", id),
      recorded([ns]),
      items.reverse().map((each) => said(each.value.message ?? each.value)),
    );
  }
  const path = at("agents", agent, "sessions", id),
    log = await get(path),
    messages = h("div", log.said.map((each) => said(each)));
  let before = log.before;
  const earlier = button(
    "Show earlier messages",
    async () => {
      const more = await get(path, { before });
      messages.prepend(...more.said.map((each) => said(each)));
      before = more.before;
      earlier.hidden = before === null;
    },
    { hidden: before === null },
  );
  return h(
    "div",
    h("h2", id),
    h(
      "div.row",
      !log.ended &&
        button("End it", async () => {
          await post(`${path}/end`);
          say("It has ended, and will be summarised.");
          again();
        }),
      button(
        "Delete",
        async () => {
          if (
            await ask(
              "Delete this conversation?",
              `${counted(log.messages, "message")} go, and with them what only they said. This cannot be undone.`,
              { yes: "Delete" },
            )
          ) {
            await del(path);
            say("Deleted.");
            go({ agent });
          }
        },
        { class: "danger" },
      ),
    ),
    log.running_summary.length > 0 &&
      h("details.card", h("summary", "Running summary of its beginning"), points({ points: log.running_summary })),
    earlier,
    messages,
  );
}

async function rolling(agent, again) {
  const path = at("agents", agent, "summary"),
    summary = await get(path);
  return h(
    "section.card",
    h("h2", "Summary of conversations that have ended"),
    points(summary),
    (summary.points ?? []).length > 0 &&
      button(
        "Forget it",
        async () => {
          if (await ask("Forget this summary?", "All it ever said goes.", { yes: "Forget" })) {
            await del(path);
            again();
          }
        },
        { class: "danger" },
      ),
  );
}
