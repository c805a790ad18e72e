"""The document as one HTML page, which loads nothing from other hosts."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>pdserve</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }
summary { cursor: pointer; padding: .3rem 0 }
code, pre { font: 13px/1.4 ui-monospace, monospace }
pre { background: #f4f4f4; padding: .7rem; overflow: auto }
b { display: inline-block; width: 4.5rem; text-transform: uppercase }
</style></head><body><h1>pdserve</h1><p>Made from <a href="openapi.json">openapi.json</a>.</p>
<main>Loading.</main><script>
const main = document.querySelector("main");
const put = (tag, text, into) => {
  const one = document.createElement(tag);
  one.textContent = text;
  into.append(one);
  return one;
};
const schemaOf = (all, content) => {
  const found = content?.["application/json"]?.schema ?? {};
  return found.$ref ? all[found.$ref.split("/").pop()] : found;
};
fetch("openapi.json").then((said) => said.json()).then((api) => {
  main.textContent = "";
  const schemas = api.components.schemas, tags = {};
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, one] of Object.entries(methods))
      (tags[one.tags[0]] ??= []).push([method, path, one]);
  for (const [tag, operations] of Object.entries(tags)) {
    put("h2", tag, main);
    for (const [method, path, one] of operations) {
      const box = put("details", "", main), line = put("summary", "", box);
      put("b", method, line);
      put("code", path, line);
      put("span", " \\u2014 " + one.summary, line);
      for (const given of one.parameters)
        put("p", given.in + ": " + given.name, box);
      if (one.requestBody) {
        put("p", "Body", box);
        put("pre", JSON.stringify(schemaOf(schemas, one.requestBody.content), null, 2), box);
      }
      put("p", "Answers: " + Object.keys(one.responses).join(", "), box);
    }
  }
  put("h2", "types", main);
  for (const [name, schema] of Object.entries(schemas)) {
    const box = put("details", "", main);
    put("summary", name, box);
    put("pre", JSON.stringify(schema, null, 2), box);
  }
});
</script></body></html>
"""
