// Creates elements. Data from the server only becomes a child or the value of an attribute, never a property of a node or
// a name. A child is a node, a text, or anything else, which is shown as JSON text.

const attributes = new Set(
    `aria-current aria-expanded aria-label aria-labelledby autocomplete checked class colspan datetime disabled download
    for hidden href id max method min name open placeholder readonly required role scope selected size spellcheck step
    tabindex title type value`.split(/\s+/),
  ),
  listeners = new Set(["onchange", "onclick", "onclose", "oninput", "onsubmit", "ontoggle"]),
  local = /^(#|\/(?!\/)|blob:)/; // addresses on this server that run no script

export const toText = (value) =>
  typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);

const nodes = (children) =>
  children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : toText(child)));

// `h("p.soft", …children)`: a child is never used as attributes, whatever it is.
export const h = (what, ...children) => element(what, {}, ...children);

// `element("p.soft", { title: "…" }, …children)`: attribute names come from the panel's own code.
export function element(what, props, ...children) {
  const [tag, ...classes] = what.split("."),
    made = document.createElement(tag);
  made.classList.add(...classes);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (listeners.has(name) && typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (attributes.has(name) && (name !== "href" || local.test(value)))
      made.setAttribute(name, value === true ? "" : toText(value));
    else throw new TypeError(`The panel does not set the attribute ${name} to this value.`);
  }
  made.append(...nodes(children));
  return made;
}

export function svg(tag, props = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) made.setAttribute(name, value);
  made.append(...nodes(children));
  return made;
}

export const button = (text, onclick, props = {}) => element("button", { type: "button", onclick, ...props }, text);

export const link = (text, to, props = {}) => element("a", { href: to, ...props }, text);

let fields = 0;
export function field(label, input, hint) {
  input.id ||= `field-${++fields}`;
  return h("div.field", element("label", { for: input.id }, label), input, hint && h("small", hint));
}

export const input = (props = {}) => element("input", { type: "text", autocomplete: "off", spellcheck: "false", ...props });

export const select = (options, value, props = {}) =>
  element(
    "select",
    props,
    options.map(([of, text]) => element("option", { value: of, selected: of === value }, text ?? of)),
  );

export function form(onsubmit, ...children) {
  return element(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        onsubmit(new FormData(event.target));
      },
    },
    children,
  );
}

export function table(caption, head, rows) {
  const cells = (row) => row.map((cell) => h("td", cell));
  return element(
    "div.scroll",
    { tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      h("caption", caption),
      h(
        "thead",
        h(
          "tr",
          head.map((name) => element("th", { scope: "col" }, name)),
        ),
      ),
      h(
        "tbody",
        rows.length ? rows.map((row) => h("tr", cells(row))) : h("tr", element("td", { colspan: head.length }, "None yet.")),
      ),
    ),
  );
}

// A view that has nothing to show yet, with code that adds something.
export const empty = (title, hint, code) =>
  h("section.empty", h("h2", title), h("p", hint), code && element("pre", { tabindex: "0" }, code));

export const firstMemory = `memory = alcove.connect("${location.origin}")
memory.put("user:alice:notes", "tea", {"text": "Alice drinks green tea"}, index=True)`;

export const failure = (error, again) =>
  element(
    "section.failure",
    { role: "alert" },
    h("h2", error.title ?? "That did not work"),
    h("p", error.message),
    again && button("Try again", again),
  );

export function say(text, undo) {
  const toast = document.getElementById("toast");
  toast.replaceChildren(
    h(
      "p",
      text,
      undo &&
        button("Undo", () => {
          toast.replaceChildren();
          undo().catch((error) => say(`The undo failed: ${error.message}`));
        }),
    ),
  );
  clearTimeout(say.until);
  say.until = setTimeout(() => toast.replaceChildren(), 12000);
}

const spans = [
  ["year", 31557600],
  ["month", 2629800],
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
];
const ago = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
export function time(iso) {
  if (!iso) return "never";
  const at = new Date(typeof iso === "string" ? iso : NaN);
  if (Number.isNaN(at.valueOf())) return toText(iso);
  const seconds = (at - Date.now()) / 1000;
  const [unit, size] = spans.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  return element("time", { datetime: iso, title: at.toLocaleString() }, ago.format(Math.round(seconds / size), unit));
}

export const number = (n) => new Intl.NumberFormat().format(n);
export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

const escaped = { "%": "%25", ":": "%3A" };
export const formatNamespace = (namespace) => namespace.map((each) => each.replace(/[%:]/g, (sign) => escaped[sign])).join(":");
export const parseNamespace = (text) =>
  text.trim()
    ? text
        .trim()
        .split(":")
        .map((each) => decodeURIComponent(each.replace(/%(?!3A|25)/gi, "%25")))
    : [];

// The text of a memory in one line of a list.
export function summarize(memory, most = 160) {
  const value = memory.value ?? {};
  const words = Object.values(memory.index ?? {}).map(toText).join(" · ") || value.content || value.text || value.message?.content;
  const text = toText(
    words || (Array.isArray(value.calls) && plural(value.calls.length, "tool call")) || JSON.stringify(value),
  );
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

const shownAtOnce = 20000;
export function json(value) {
  const text = JSON.stringify(value, null, 2),
    shown = element("pre", { tabindex: "0", class: "json" }, text.slice(0, shownAtOnce));
  if (text.length <= shownAtOnce) return shown;
  const more = button(`Show all ${number(text.length)} characters`, () => {
    shown.textContent = text;
    more.remove();
  });
  return h("div", shown, more);
}

export function bar(label, share, text, kind = "") {
  const width = Math.max(0, Math.min(1, share));
  return h(
    "div.bar",
    h("span", label),
    element("meter", { class: kind, min: 0, max: 1, value: width, "aria-label": label }),
    h("b", text),
  );
}

export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// Asks for confirmation; with `typed`, only after that exact text was typed.
export function ask(title, text, { yes = "Yes", typed } = {}) {
  return new Promise((answer) => {
    const shown =
      typed &&
      input({
        required: true,
        "aria-label": `Type ${typed}`,
        oninput: () => {
          sure.disabled = shown.value !== typed;
        },
      });
    const sure = element("button", { value: "yes", class: "danger", disabled: Boolean(typed) }, yes);
    const dialog = element(
      "dialog",
      {
        "aria-labelledby": "ask-title",
        onclose: () => {
          dialog.remove();
          answer(dialog.returnValue === "yes");
        },
      },
      element(
        "form",
        { method: "dialog" },
        element("h2", { id: "ask-title" }, title),
        h("p", text),
        shown && field(`Type ${typed} to confirm`, shown),
        h("div.row", sure, element("button", { value: "no" }, "Cancel")),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function loadSetting(name, fallback) {
  try {
    return localStorage.getItem(`alcove.${name}`) ?? fallback;
  } catch {
    return fallback;
  }
}

export function saveSetting(name, value) {
  try {
    localStorage.setItem(`alcove.${name}`, value);
  } catch {
    /* the browser blocks storage */
  }
}
