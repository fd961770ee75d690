// Calls of the REST API, as the user who is signed in.

let csrf = "";
export let me = null; // who is signed in

export class ApiError extends Error {
  constructor(status, body) {
    super(body.error ?? body.message ?? `The server answered ${status}.`);
    this.status = status;
    this.title = {
      401: "Please sign in",
      403: "You may not see this",
      404: "Not found",
      409: "Somebody else changed it first",
      503: "The server cannot answer now",
    }[status];
  }
}

const away = "The server does not answer. Is it still running? Nothing you typed is lost; try again when it is back.";

async function send(method, path, body) {
  const headers = csrf ? { "X-Alcove-CSRF": csrf } : {}; // for reads, too: it names the session of this page
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
    throw Object.assign(new Error(away), { title: "The server cannot be reached" });
  }
  if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

export const query = (params = {}) => {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    for (const each of [value].flat())
      if (each !== undefined && each !== null && each !== "") parts.append(name, each);
  return parts.size ? `?${parts}` : "";
};

const parse = async (answer) => (answer.status === 204 ? null : answer.json());
export const get = async (path, params) => parse(await send("GET", path + query(params)));
export const post = async (path, body = {}) => parse(await send("POST", path, body));
export const put = async (path, body) => parse(await send("PUT", path, body));
export const del = async (path, params) => parse(await send("DELETE", path + query(params)));
export const text = async (path) => (await send("GET", path)).text();
export const at = (...parts) => `/v1/${parts.map(encodeURIComponent).join("/")}`;

export const memory = {
  get: (ns, key, as_of) => get("/v1/memories", { ns, key, as_of }),
  history: (ns, key, after_cursor) => get("/v1/memories/history", { ns, key, after_cursor }),
};

export async function loadSession() {
  csrf = ""; // that of the last session, which may have ended
  const session = await get("/panel/session");
  csrf = session.csrf;
  me = {
    ...session,
    admin: session.roles.includes("admin"),
    auditor: session.roles.includes("admin") || session.roles.includes("auditor"),
  };
  return me;
}
export const signIn = (token) => send("POST", "/panel/session", { token });
export const signOut = () => send("DELETE", "/panel/session");

// Calls `onChange` soon after events below a namespace, once for many. Call what it returns to end it: a browser has few
// connections.
export function follow(ns, onChange) {
  const stream = new EventSource(`/v1/memories/events/stream${query({ ns })}`);
  let due = null;
  const soon = () => {
    due ??= setTimeout(() => {
      due = null;
      onChange().catch(() => null); // the stream reconnects by itself, and then brings what is new
    }, 300);
  };
  for (const kind of ["message", "add", "update", "delete", "expired"]) stream.addEventListener(kind, soon);
  return () => {
    clearTimeout(due);
    stream.close();
  };
}
