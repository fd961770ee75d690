// Routing: the address names the view, `#view?name=value`, so that every page can be bookmarked and shared.

import { loadSession, query, signIn, signOut } from "./api.js";
import { button, element, failure, field, form, h, input, link, saveSetting, loadSetting, say } from "./dom.js";

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
  cleanups = [],
  turn = 0;

export const to = (view, params) => `#${view}${query(params)}`;

function here() {
  const [view, params = ""] = location.hash.slice(1).split("?");
  return [view in views || view === "memory" ? view : "agents", new URLSearchParams(params)];
}

async function show() {
  const mine = ++turn,
    [view, params] = here();
  cleanups.forEach((end) => end());
  cleanups = [];
  document.title = `${views[view] ?? params.get("key") ?? "Memory"} · Alcove`;
  main.setAttribute("aria-busy", "true");
  const context = {
    me,
    go: (params, name = view) => {
      location.hash = to(name, params);
    },
    again: show,
    until: (end) => (mine === turn ? cleanups.push(end) : end()),
  };
  let shown;
  try {
    const { default: make } = await import(`./${view}.js`),
      making = make(params, context);
    if (mine === turn) drawTop(view); // while the server answers
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
      button("Switch theme", () => shade(document.documentElement.dataset.shade === "dark" ? "light" : "dark"), {
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
          "alcove token --user alice              # with --jwt-secret\nalcove apikey create --client phone-app --user alice",
        ),
      ),
    ),
  );
  main.removeAttribute("aria-busy");
  token.focus();
}

function shade(name) {
  document.documentElement.dataset.shade = name;
  saveSetting("shade", name);
}

async function start() {
  const meanwhile = import(`./${here()[0]}.js`).catch(() => null); // `show` reports what is wrong with it
  try {
    me = await loadSession();
    await meanwhile;
  } catch (error) {
    if (error.status === 401) return login();
    main.replaceChildren(failure(error, start));
    return;
  }
  await show();
}

shade(loadSetting("shade", matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // its address is not that of a view
  main.focus();
});
addEventListener("unhandledrejection", (event) => {
  say(event.reason?.message ?? "That did not work.");
});
start();
