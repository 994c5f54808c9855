// Builds the page into the Python package, and records which sources it was built from.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "src", "emulon", "playground", "static");
const options = { bundle: true, minify: true, charset: "utf8", target: "es2022", format: "esm", logLevel: "warning" };

mkdirSync(out, { recursive: true });
await build({ ...options, entryPoints: [join(here, "src", "main.ts")], outfile: join(out, "app.js") });
await build({ ...options, entryPoints: [join(here, "src", "style.css")], outfile: join(out, "style.css") });
copyFileSync(join(here, "src", "index.html"), join(out, "index.html"));

const sha256 = (path) => createHash("sha256").update(readFileSync(path)).digest("hex");
const sources = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json"];
sources.push(...readdirSync(join(here, "src")).sort().map((name) => `src/${name}`));
const record = {
  sources: Object.fromEntries(sources.map((name) => [name, sha256(join(here, name))])),
  built: Object.fromEntries(["app.js", "style.css", "index.html"].map((name) => [name, sha256(join(out, name))])),
};
writeFileSync(join(out, "build.json"), `${JSON.stringify(record, null, 1)}\n`);
