// Which view is shown: `#name?of=what`, so that every page has an address that can be kept and sent.

import { signedIn, signIn, signOut } from "./api.js";
import { button, element, failure, field, form, h, input, link, remember, remembered, say } from "./dom.js";

const views = {
  agents: "Agents",
  explore: "Explore",
  prompt: "Prompt",
  conversations: "Conversations",
  knowledge: "Knowledge",
  map: "Map",
  activity: "Activity",
  admin: "Admin",
};
const main = document.getElementById("main"),
  top = document.getElementById("top");
let me = null,
  ending = [],
  turn = 0;

export const to = (view, asked = {}) => {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(asked))
    for (const each of [value].flat()) if (each !== undefined && each !== null && each !== "") parts.append(name, each);
  return `#${view}${parts.size ? `?${parts}` : ""}`;
};

function here() {
  const [view, asked = ""] = location.hash.slice(1).split("?");
  return [view in views || view === "memory" ? view : "agents", new URLSearchParams(asked)];
}

async function show() {
  const mine = ++turn,
    [view, asked] = here();
  ending.forEach((end) => end());
  ending = [];
  document.title = `${views[view] ?? asked.get("key") ?? "Memory"} · Alcove`;
  main.setAttribute("aria-busy", "true");
  const context = {
    me,
    go: (asked, name = view) => {
      location.hash = to(name, asked);
    },
    again: show,
    until: (end) => (mine === turn ? ending.push(end) : end()),
  };
  let shown;
  try {
    const { default: make } = await import(`./${view}.js`),
      making = make(asked, context);
    if (mine === turn) drawTop(view); // while the server is at it
    shown = await making;
  } catch (error) {
    if (error.status === 401) return login(error);
    shown = failure(error, show);
  }
  if (mine !== turn) return;
  main.replaceChildren(element("h1", { class: view === "memory" ? "" : "quiet" }, views[view] ?? "Memory"), shown);
  main.removeAttribute("aria-busy");
}

function drawTop(view) {
  const named = Object.entries(views).filter(([name]) => name !== "admin" || me.auditor);
  const current = view === "memory" ? "explore" : view;
  top.replaceChildren(
    element(
      "nav",
      { "aria-label": "Views" },
      link("Alcove", "#agents", { class: "brand" }),
      named.map(([name, text]) => link(text, to(name), { "aria-current": name === current ? "page" : null })),
    ),
    h(
      "div.who",
      h("span", me.user, me.roles.length ? ` (${me.roles.join(", ")})` : ""),
      button("Dark or light", () => shade(document.documentElement.dataset.shade === "dark" ? "light" : "dark"), {
        class: "quiet",
      }),
      me.authentication !== "noop" &&
        button(
          "Sign out",
          async () => {
            await signOut();
            location.reload();
          },
          { class: "quiet" },
        ),
    ),
  );
}

function login(error) {
  top.replaceChildren(h("nav", h("span.brand", "Alcove")));
  const token = input({ type: "password", name: "token", required: true, autocomplete: "current-password" });
  main.replaceChildren(
    h(
      "section.login",
      h("h1", "Sign in to the memory panel"),
      error && failure(error),
      form(
        async (given) => {
          try {
            await signIn(given.get("token"));
            await start();
          } catch (refused) {
            login(refused);
          }
        },
        field("Token or API key", token, "The one your programs use. It stays in a cookie that no script can read."),
        h("button.main", "Sign in"),
      ),
      h(
        "details",
        h("summary", "Where do I get one?"),
        element(
          "pre",
          { tabindex: "0" },
          "alcove token --user alice              # with --jwt-secret\nalcove apikey create phone-app --user alice",
        ),
      ),
    ),
  );
  main.removeAttribute("aria-busy");
  token.focus();
}

function shade(name) {
  document.documentElement.dataset.shade = name;
  remember("shade", name);
}

async function start() {
  const meanwhile = import(`./${here()[0]}.js`).catch(() => null); // `show` tells what is wrong with it
  try {
    me = await signedIn();
    await meanwhile;
  } catch (error) {
    if (error.status === 401) return login();
    main.replaceChildren(failure(error, start));
    return;
  }
  await show();
}

shade(remembered("shade", matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // its address is none of a view
  main.focus();
});
addEventListener("unhandledrejection", (event) => {
  say(event.reason?.message ?? "That did not work.");
});
start();
