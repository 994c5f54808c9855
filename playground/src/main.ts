// The page: which scene is shown, in light or dark. Scenes load what they need when they are first opened.

import { html } from "./draw";
import { algorithms } from "./algorithms";
import { softmaxes } from "./softmax";
import { identify } from "./identify";
import { llama } from "./llama";
import { machine } from "./machine";
import { Tour } from "./tour";

export interface Scene {
  readonly element: HTMLElement;
  // What stands behind the scene's name in the address, and what to do when the colours have changed.
  show(words: string[]): void;
  redraw(): void;
}

const SCENES: { name: string; title: string; open: () => Promise<Scene> }[] = [
  { name: "algorithms", title: "Many algorithms", open: algorithms },
  { name: "llama", title: "A stock Llama", open: llama },
  { name: "softmax", title: "One softmax", open: softmaxes },
  { name: "identify", title: "Which algorithm?", open: identify },
  { name: "machine", title: "Inside a GPT-2", open: machine },
];

const opened = new Map<string, Promise<Scene>>();
const main = document.getElementById("main") as HTMLElement;
const links = new Map(SCENES.map(({ name, title }) => [name, html("a", { href: `#${name}` }, title)]));
document.getElementById("scenes")?.append(...links.values());

function address(): string {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return ""; // not an address of ours
  }
}

async function route(): Promise<void> {
  const [wanted, ...words] = address().split("/") as [string, ...string[]];
  const scene = SCENES.find(({ name }) => name === wanted) ?? (SCENES[0] as (typeof SCENES)[0]);
  for (const [name, link] of links) {
    if (name === scene.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  let found = opened.get(scene.name);
  if (found === undefined) opened.set(scene.name, (found = scene.open()));
  try {
    const shown = await found;
    main.replaceChildren(shown.element);
    shown.show(words);
  } catch (error) {
    opened.delete(scene.name);
    main.replaceChildren(html("p", { class: "loading" }, `This scene could not be loaded: ${String(error)}`));
  }
}

const theme = document.getElementById("theme") as HTMLButtonElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

function paintTheme(name: string): void {
  document.documentElement.dataset.theme = name;
  theme.replaceChildren(name === "dark" ? "☀" : "☾", html("span", {}, name === "dark" ? " light" : " dark"));
  for (const scene of opened.values()) void scene.then((each) => each.redraw()).catch(() => undefined);
}

theme.addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", next);
  paintTheme(next);
});
dark.addEventListener("change", () => {
  if (localStorage.getItem("theme") === null) paintTheme(dark.matches ? "dark" : "light");
});
paintTheme(localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light"));
const tour = new Tour();
document.getElementById("start-tour")?.addEventListener("click", () => tour.start());
addEventListener("hashchange", () => void route());
void route();
