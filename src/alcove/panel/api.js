// The REST API, as the browser that is signed in may call it.

let csrf = "";
export let me = null; // who is signed in

export class Refused extends Error {
  constructor(status, told) {
    super(told.error ?? told.message ?? `The server answered ${status}.`);
    this.status = status;
    this.title = {
      401: "Please sign in",
      403: "You may not see this",
      404: "It is not there",
      409: "Somebody was quicker",
      503: "The server cannot answer now",
    }[status];
  }
}

const away = "The server does not answer. Is it still running? Nothing you typed is lost; try again when it is back.";

async function sent(method, path, body) {
  const headers = csrf ? { "X-Alcove-CSRF": csrf } : {}; // with reads, too: it says which session is this page's
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    throw Object.assign(new Error(away), { title: "The server is away" });
  }
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

export const query = (asked = {}) => {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(asked))
    for (const each of Array.isArray(value) ? value : [value])
      if (each !== undefined && each !== null && each !== "") parts.append(name, each);
  const text = parts.toString();
  return text ? `?${text}` : "";
};

const answered = async (answer) => (answer.status === 204 ? null : answer.json());
export const get = async (path, asked) => answered(await sent("GET", path + query(asked)));
export const post = async (path, body = {}) => answered(await sent("POST", path, body));
export const put = async (path, body) => answered(await sent("PUT", path, body));
export const del = async (path, asked) => answered(await sent("DELETE", path + query(asked)));
export const text = async (path) => (await sent("GET", path)).text();
export const at = (...parts) => `/v1/${parts.map(encodeURIComponent).join("/")}`;

export const memory = {
  get: (ns, key, as_of) => get("/v1/memories", { ns, key, as_of }),
  history: (ns, key, after_cursor) => get("/v1/memories/history", { ns, key, after_cursor }),
};

export async function signedIn() {
  csrf = ""; // of the session before, which may have ended
  const session = await get("/panel/session");
  csrf = session.csrf;
  me = {
    ...session,
    admin: session.roles.includes("admin"),
    auditor: session.roles.includes("admin") || session.roles.includes("auditor"),
  };
  return me;
}
export const signIn = (token) => sent("POST", "/panel/session", { token });
export const signOut = () => sent("DELETE", "/panel/session");

// Calls back soon after something happened below a namespace, however much does; a browser keeps few connections, so end it.
export function follow(ns, happened) {
  const stream = new EventSource(`/v1/memories/events/stream${query({ ns })}`);
  let due = null;
  const soon = () => {
    due ??= setTimeout(() => {
      due = null;
      happened().catch(() => null); // the stream itself comes back, and tells of what is new then
    }, 300);
  };
  for (const kind of ["message", "add", "update", "delete", "expired"]) stream.addEventListener(kind, soon);
  return () => {
    clearTimeout(due);
    stream.close();
  };
}
