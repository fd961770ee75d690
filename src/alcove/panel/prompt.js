// What a model would be sent for a message, tier by tier, and what was left out and why.

import { chooseAgent } from "./agents.js";
import { at, post } from "./api.js";
import { bar, plural, element, empty, field, form, h, input, number, table, time, toText } from "./dom.js";

export default async function prompt(params, { go }) {
  const { none, name: agent, choose } = await chooseAgent(params, { name: "agent" });
  if (none) return none;
  const session = params.get("session") ?? "panel",
    message = params.get("message") ?? "";
  const budget = params.get("budget") ?? "4000";
  const asking = form(
    (given) => go(Object.fromEntries(given)),
    h(
      "div.row.card",
      choose,
      field("Session", input({ name: "session", value: session, required: true })),
      field("Tokens", input({ name: "budget", type: "number", min: "200", max: "1000000", value: budget })),
      h(
        "div.grow",
        field(
          "Message",
          input({ name: "message", value: message, required: true, placeholder: "What should I cook tonight?" }),
        ),
      ),
      h("button.main", "Show the prompt"),
    ),
  );
  if (!message)
    return h(
      "div",
      asking,
      empty(
        "Write a message as a user",
        "You see exactly what the model would be sent. Nothing is stored or sent anywhere.",
      ),
    );
  const { messages, receipt } = await post(at("agents", agent, "context"), {
    session_id: session,
    message,
    budget_tokens: Number(budget),
  });
  return h(
    "div",
    asking,
    h("div.two", tiers(receipt), h("div", sentAs(messages, receipt), left(receipt))),
  );
}

const roles = ["system", "user", "assistant", "tool"],
  framed = (role) => ({ class: `message ${roles.includes(role) ? role : ""}` });

// A stored message may have any shape.
export const messageView = (message, more) =>
  element(
    "article",
    framed(message.role),
    h("div.meta", h("span.kind", message.name ?? message.role), message.at && time(message.at)),
    message.content && h("p", toText(message.content)),
    [message.tool_calls ?? []].flat().map((call) => h("p", h("code", callText(call?.function ?? call)))),
    more,
  );

const callText = (to) => `${toText(to?.name)}(${toText(to?.arguments)})`;

const called = (tier) => tier.replaceAll("_", " ");

// Every message as it would be sent, under its tier.
function sentAs(messages, receipt) {
  let sent = 0;
  return Object.entries(receipt.tiers).map(([name, tier]) => {
    const own = messages.slice(sent, (sent += tier.messages));
    const size = `${plural(tier.tokens, "token")} in ${plural(own.length, "message")}`,
      one = (each, n) => messageView(each, tier.items.length === own.length && about(tier.items[n]));
    const shown = name === "conversation" ? own.map(one) : own.map((each) => quoted(each, tier));
    return own.length > 0 && h("section", h("h2", called(name), " ", h("small", size)), shown);
  });
}

// A message of recalled lines, exactly as sent, each with its source and its tokens.
function quoted(message, { items, frame }) {
  const lines = toText(message.content ?? "").split("\n");
  if (!items.length || lines.length < items.length + 1) return messageView(message);
  return element(
    "article",
    framed(message.role),
    h("div.meta", h("span.kind", message.role), h("span", `${plural(frame, "token")} for the text around them`)),
    h("p", lines[0]),
    items.map((item, n) => h("div.recalled", h("p", lines[n + 1]), about(item))),
    lines.slice(items.length + 1).map((line) => h("p", line)),
  );
}

const about = (item) =>
  h(
    "div.meta",
    h("span", item.source),
    h("span", plural(item.tokens, "token")),
    typeof item.score === "number" && h("span", `score ${item.score.toFixed(2)}`),
    typeof item.cosine === "number" && h("span", `similarity ${item.cosine.toFixed(2)}`),
    item.at && time(item.at),
    h("span", item.id),
  );

function tiers(receipt) {
  const { total_tokens: total, budget_tokens: budget } = receipt;
  return element(
    "section.card",
    { "aria-label": "Tiers" },
    h("h2", `${number(total)} of ${number(budget)} tokens`),
    receipt.degraded && h("p.soft", receipt.degraded),
    Object.entries(receipt.tiers)
      .filter(([, tier]) => tier.tokens)
      .map(([name, tier]) => bar(called(name), tier.tokens / total, number(tier.tokens))),
    h("p.soft", `Counted with ${receipt.tokenizer}.`),
    h(
      "p.soft",
      Object.entries(receipt.timings_ms)
        .map(([name, ms]) => `${called(name)} ${ms.toFixed(1)} ms`)
        .join(", "),
    ),
  );
}

const left = (receipt) =>
  receipt.left_out.length
    ? table(
        "Left out, and why",
        ["tier", "what", "tokens", "why"],
        receipt.left_out.map((each) => [
          called(each.tier),
          each.text ?? each.id ?? plural(each.count, "item"),
          each.tokens ?? "",
          each.why === "budget" ? "no room left in the budget" : each.why,
        ]),
      )
    : h("p.soft", "Nothing was left out.");
