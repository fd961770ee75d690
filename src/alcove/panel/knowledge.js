// Knowledge sources: their documents, files that could not be read, and a search for what agents would find.

import { at, get, post } from "./api.js";
import { to } from "./app.js";
import { button, empty, field, form, h, input, link, number, say, table, time } from "./dom.js";

export default async function knowledge(params, { go, again }) {
  const { sources } = await get("/v1/knowledge");
  if (!sources.length)
    return empty(
      "No sources to manage",
      "A source is a folder of documents that agents look things up in.",
      "# agents.yaml\nknowledge: [{name: manuals, path: ./manuals}]",
    );
  const name = params.get("source") ?? sources[0].name,
    words = params.get("q") ?? "",
    source = sources.find((each) => each.name === name) ?? sources[0];
  const { documents } = await get(at("knowledge", source.name, "documents"));
  const rows = sources.map((each) => [
    link(each.name, to("knowledge", { source: each.name })),
    each.path,
    number(each.documents),
    number(each.chunks),
    number(each.waiting),
    Object.keys(each.errors).length || "none",
    button("Sync now", async () => {
      await post(at("knowledge", each.name, "sync"));
      say(`${each.name} is up to date with its files.`);
      again();
    }),
  ]);
  const found = words ? (await post(at("knowledge", source.name, "search"), { query: words })).items : [];
  return h(
    "div",
    table("Sources", ["name", "folder", "documents", "chunks", "waiting for the index", "errors", ""], rows),
    h("h2", `Search ${source.name}`),
    form(
      (given) => go({ source: source.name, q: given.get("q") }),
      h(
        "div.row",
        h("div.grow", field("Question", input({ name: "q", type: "search", value: words, required: true }))),
        h("button.main", "Search"),
      ),
    ),
    words &&
      (found.length
        ? h(
            "ul.plain",
            found.map((each) =>
              h(
                "li",
                h("p", each.text),
                h(
                  "div.meta",
                  h("span", each.document),
                  h("span", each.heading),
                  each.page !== null && h("span", `page ${each.page}`),
                  h("span", `score ${each.score.toFixed(2)}`),
                ),
              ),
            ),
          )
        : h("p", "Nothing was found.")),
    table(
      `Documents of ${source.name}`,
      ["name", "chunks", "bytes", "from", "changed", "error"],
      documents.map((each) => [
        each.name,
        number(each.chunks),
        number(each.bytes),
        each.uploaded ? "an upload" : "its folder",
        time(each.updated_at),
        each.error ?? "",
      ]),
    ),
  );
}
