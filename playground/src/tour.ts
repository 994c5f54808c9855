// A guided tour of about a minute: what to look at, in a card at the foot of the page.

import { button, html, still } from "./draw";

// Where to be, what to look at there, and what to say of it.
const STEPS: [address: string, find: string, say: string][] = [
  ["algorithms/huber/60", ".plane", "Data, and what was learned from them. Drag a point: everything is computed again, here."],
  ["algorithms/huber/60", ".prompts", "The prompt of the transformer, a column a token. It alone says that this is Huber regression."],
  ["algorithms/lasso/60", ".prompts", "Another algorithm is another prompt. Bright is what has changed, below is the prompt from before."],
  ["algorithms/lasso/60", "#sha256", "The weights have not changed: one sha256 for all twelve algorithms."],
  ["algorithms/lasso/60", "#weights", "Beside the exact algorithm: the digits that agree, the distance, and a bound that is proved."],
  ["llama/huber", "#words", "The same idea as text. A stock Llama reads a prompt and writes the weights of every step; click a word."],
  ["llama/huber", "#looks", "Where each head looks at that word, and what it reads there: the weights were compiled from named registers."],
  ["identify", "#nearest", "This one was trained. Which algorithm does it run? Its answers are compared with those of four."],
];
const SECONDS = 7.5;

export class Tour {
  private step = -1;
  private timer = 0;
  private readonly text = html("p", { "aria-live": "polite" });
  private readonly count = html("span", { class: "note" });
  private readonly next = button("next", () => this.go(this.step + 1), { class: "main" });
  private readonly card = html("section", { class: "card tour", id: "tour", hidden: true, "aria-label": "guided tour" }, this.text,
    html("div", { class: "controls" }, this.count, html("span", { class: "grow" }), button("back", () => this.go(this.step - 1)), this.next, button("close", () => this.close())));

  constructor() {
    document.body.append(this.card);
  }

  start(): void {
    this.go(0);
  }

  private close(): void {
    clearTimeout(this.timer);
    this.step = -1;
    this.card.hidden = true;
    this.mark(null);
  }

  private mark(found: Element | null): void {
    for (const each of document.querySelectorAll(".toured")) each.classList.remove("toured");
    found?.classList.add("toured");
    found?.scrollIntoView({ block: "center", behavior: still() ? "auto" : "smooth" });
  }

  private go(step: number): void {
    clearTimeout(this.timer);
    const found = STEPS[step];
    if (found === undefined) return this.close();
    const [address, find, say] = found;
    this.step = step;
    this.card.hidden = false;
    this.text.textContent = say;
    this.count.textContent = `${step + 1} of ${STEPS.length}`;
    this.next.textContent = step + 1 < STEPS.length ? "next" : "done";
    if (STEPS[step - 1]?.[0] !== address || !location.hash.startsWith(`#${address.split("/")[0] ?? ""}`)) location.hash = address;
    this.look(find, step, 40);
    // Who asked for less motion turns the pages alone.
    if (!still()) this.timer = window.setTimeout(() => this.go(step + 1), 1000 * SECONDS);
  }

  // A scene may still be loading.
  private look(find: string, step: number, tries: number): void {
    if (step !== this.step) return;
    const found = document.querySelector(find);
    this.mark(found);
    if (found === null && tries > 0) window.setTimeout(() => this.look(find, step, tries - 1), 100);
  }
}
