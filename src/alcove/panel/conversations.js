// An agent's conversations with a user: messages and summaries, with buttons to end and delete them.

import { at, del, get, post } from "./api.js";
import { to } from "./app.js";
import { ask, button, plural, element, empty, h, link, say, time } from "./dom.js";
import { chooseAgent, points, userForm } from "./agents.js";
import { auditNotice } from "./memories.js";
import { messageView } from "./prompt.js";

export default async function conversations(params, { me, go, again }) {
  const user = params.get("user") || me.user,
    other = user !== me.user;
  const chosenAgent = await chooseAgent(params, { onchange: (event) => go({ agent: event.target.value, user }) });
  if (chosenAgent.none) return chosenAgent.none;
  const { name: agent, choose } = chosenAgent;
  const id = params.get("session"),
    sessions = other ? await theirs(agent, user) : (await get(at("agents", agent, "sessions"))).sessions;
  const choosing = h(
    "div.row.card",
    choose,
    me.admin && userForm(user, (user) => go({ agent, user })),
    link("See the prompt", to("prompt", { agent, session: id })),
  );
  if (!sessions.length)
    return h(
      "div",
      choosing,
      empty(
        "No conversations yet",
        `Messages to ${agent} are stored by session:`,
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
            h("span", plural(each.messages, "message")),
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

// An admin reads another user's conversations in the namespaces that store them.
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
      auditNotice([ns]),
      items.reverse().map((each) => messageView(each.value.message ?? each.value)),
    );
  }
  const path = at("agents", agent, "sessions", id),
    log = await get(path),
    messages = h("div", log.said.map((each) => messageView(each)));
  let before = log.before;
  const earlier = button(
    "Show earlier messages",
    async () => {
      const more = await get(path, { before });
      messages.prepend(...more.said.map((each) => messageView(each)));
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
          say("Ended. It will be summarised.");
          again();
        }),
      button(
        "Delete",
        async () => {
          if (
            await ask(
              "Delete this conversation?",
              `This deletes ${plural(log.messages, "message")}. It cannot be undone.`,
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
      h("details.card", h("summary", "Running summary of earlier messages"), points({ points: log.running_summary })),
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
          if (await ask("Forget this summary?", "This deletes the summary and its history.", { yes: "Forget" })) {
            await del(path);
            again();
          }
        },
        { class: "danger" },
      ),
  );
}
