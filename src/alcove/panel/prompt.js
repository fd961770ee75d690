// What a model would be sent for a message, tier by tier, and what was left out, and why.

import { chosen } from "./agents.js";
import { at, post } from "./api.js";
import { bar, counted, empty, field, form, h, input, number, table, time } from "./dom.js";

export default async function prompt(asked, { go }) {
  const { none, name: agent, choose } = await chosen(asked, { name: "agent" });
  if (none) return none;
  const session = asked.get("session") ?? "panel",
    message = asked.get("message") ?? "";
  const budget = asked.get("budget") ?? "4000";
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
          "What you say",
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
        "Say something as a user",
        "You see exactly what the model would be sent, and nothing is stored or sent anywhere.",
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
    h(
      "div.two",
      tiers(receipt),
      h("div", h("h2", counted(messages.length, "message")), messages.map(said), left(receipt)),
    ),
  );
}

export const said = (message) =>
  h(
    "article",
    { class: `message ${message.role}` },
    h("div.meta", h("span.kind", message.name ?? message.role), message.at && time(message.at)),
    message.content && h("p", message.content),
    (message.tool_calls ?? []).map((call) => h("p", h("code", `${call.function?.name}(${call.function?.arguments})`))),
  );

function tiers(receipt) {
  const { total_tokens: total, budget_tokens: budget } = receipt;
  return h(
    "section.card",
    { "aria-label": "Tiers" },
    h("h2", `${number(total)} of ${number(budget)} tokens`),
    receipt.degraded && h("p.soft", receipt.degraded),
    Object.entries(receipt.tiers)
      .filter(([, tier]) => tier.tokens)
      .map(([name, tier]) =>
        h(
          "details",
          h("summary", bar(name.replaceAll("_", " "), tier.tokens / total, `${number(tier.tokens)}`)),
          h(
            "ul.plain",
            tier.items.map((item) =>
              h(
                "li",
                h("div", item.id),
                h(
                  "div.meta",
                  h("span", item.source),
                  h("span", counted(item.tokens, "token")),
                  typeof item.score === "number" && h("span", `score ${item.score.toFixed(2)}`),
                  typeof item.cosine === "number" && h("span", `likeness ${item.cosine.toFixed(2)}`),
                  item.at && time(item.at),
                ),
              ),
            ),
          ),
        ),
      ),
    h(
      "p.soft",
      `Counted with ${receipt.tokenizer}. `,
      Object.entries(receipt.timings_ms)
        .map(([name, ms]) => `${name} ${ms.toFixed(1)} ms`)
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
          each.tier,
          each.id ?? counted(each.count, "item"),
          each.tokens ?? "",
          each.why,
        ]),
      )
    : h("p.soft", "Nothing was left out.");
