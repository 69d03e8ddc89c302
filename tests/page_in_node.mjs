// Translate the lines of a JSON list on stdin with an exported page's own scripts: node page_in_node.mjs FOLDER < lines.json
import { readFile } from "node:fs/promises";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { text } from "node:stream/consumers";

// the page's libraries are those for browsers, which look for this name
Object.defineProperty(process, "release", { value: { name: "browser" } });
globalThis.fetch = () => { throw new Error("a request left this machine"); };

const folder = process.argv[2];
const settings = JSON.parse((await readFile(`${folder}/index.html`, "utf8")).match(/const settings = (.*);/)[1]);
const read = async (path) => {
  try {
    return new Response(await readFile(`${folder}/${path}`));
  } catch {
    return new Response("", { status: 404 });
  }
};
const scripts = mkdtempSync(`${tmpdir()}/page-`);
let written = 0;
const toModule = (bytes) => {
  const path = `${scripts}/${written++}.mjs`;
  writeFileSync(path, Buffer.from(bytes));
  return `file://${path}`;
};
const module = await import(`file://${folder}/page/translator.mjs`);
const translator = await module.load(read, toModule, settings);
const results = [];
for (const line of JSON.parse(await text(process.stdin))) results.push(await translator.translate(line));
rmSync(scripts, { recursive: true });
console.log(JSON.stringify(results));
