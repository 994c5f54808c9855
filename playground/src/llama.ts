// Scene 2: a stock Llama that writes out gradient descent, a word at a time; its registers, and where its heads look.

import { button, choice, html, icon, scientific, short, still } from "./draw";
import { descend } from "./exact";
import { fetchBytes, readSafetensors, unzipped } from "./files";
import type { Scene } from "./main";
import { legend, Plane, type Point } from "./plane";
import { type Facts as Method, type Sample, samplesOf } from "./program";
import { type Look, Stock, type Thought } from "./stock";

const LINE: Point[] = [[-0.9, -0.8], [-0.6, -0.7], [-0.2, 0], [0.1, 0.35], [0.4, 0.5], [0.7, 1.1], [0.9, -0.6]].map(([x, y]) => ({ x, y, label: 1 }) as Point);
const BLOBS: Point[] = [[-0.7, 0.1, -1], [-0.4, -0.5, -1], [-0.1, -0.2, -1], [0.2, 0.4, 1], [0.4, -0.1, 1], [0.7, 0.6, 1]].map(([x, y, label]) => ({ x, y, label }) as Point);
const MOST_POINTS = 12;
// What float32 leaves where a register should be empty.
const NOTHING = 1e-15;
// Milliseconds from one written word to the next; and for how long the page may think before it is drawn again.
const [PAUSE, BUDGET] = [45, 12];

export async function llama(): Promise<Scene> {
  const [model, list] = await Promise.all([fetchBytes("data/llama.safetensors.gz"), fetchBytes("data/programs.json")]);
  const stock = new Stock(readSafetensors(await unzipped(model)));
  const methods = JSON.parse(new TextDecoder().decode(list)) as Method[];
  return new Llama(stock, new Map(methods.filter(({ name }) => name in stock.facts.methods).map((each) => [each.name, each])));
}

// A number in three words, +0.32 -488 +484: hundredths, then two groups of three digits.
export function numberWords(value: number): string {
  const even = (part: number): number => (Math.abs(part % 1) === 0.5 ? 2 * Math.round(part / 2) : Math.round(part));
  const units = Math.round(value * 1e8);
  const head = even(units / 1e6);
  const middle = even((units - head * 1e6) / 1000);
  const sign = (part: number): string => (part < 0 ? "-" : "+");
  const groups = [middle, units - head * 1e6 - middle * 1000].map((part) => `${sign(part)}${String(Math.abs(part)).padStart(3, "0")}`);
  return [`${sign(head)}${(Math.abs(head) / 100).toFixed(2)}`, ...groups].join(" ");
}

class Llama implements Scene {
  readonly element: HTMLElement;
  private method: Method;
  private before: Method | null = null;
  private readonly points = { residual: structuredClone(LINE), margin: structuredClone(BLOBS), rate: [] as Point[] };
  private readonly plane: Plane;
  // A prompt of the visitor's own: its data are not those of the plot.
  private own: string | null = null;
  private prompt: string[] = [];
  private thoughts: Thought[] = [];
  private written: string[] = [];
  private chosen = -1;
  private playing = false;
  private hurry = false;
  private readonly spans: HTMLElement[] = [];
  private readonly numbers = new Map<string, number>();
  private readonly methods = html("div");
  private readonly heading = html("h2");
  private readonly given = html("div", { class: "given" });
  private readonly answer = html("div", { class: "answer" });
  private readonly words = html("div", { class: "words", id: "words", tabindex: 0, role: "region", "aria-label": "the text; arrow keys move from word to word" }, this.given, html("h2", {}, "The Llama writes"), this.answer);
  private readonly difference = html("p", { class: "note", id: "word-difference" });
  private readonly player: HTMLButtonElement;
  private readonly count = html("output", { id: "tokens" });
  private readonly keys = html("div", { class: "keys" });
  private readonly facts = html("dl", { class: "numbers" });
  private readonly refusal = html("p", { class: "note warn", role: "status" });
  private readonly registers = html("dl", { class: "slots", id: "registers-of-word" });
  private readonly word = html("h2", { id: "word" });
  private readonly looks = html("ul", { class: "looks", id: "looks" });
  private readonly sha = html("span", { class: "chip", id: "llama-sha256" });
  private readonly text = html("textarea", { rows: 5, "aria-label": "a prompt of your own", spellcheck: "false" });

  constructor(private readonly stock: Stock, private readonly known: Map<string, Method>) {
    this.method = (known.get("ridge") ?? known.values().next().value) as Method;
    stock.facts.words.forEach((word, number) => this.numbers.set(word, number));
    this.plane = new Plane(MOST_POINTS, () => this.restart(), () => undefined);
    this.player = button("write", () => this.play(!this.playing), { class: "main" });
    this.words.addEventListener("click", (event) => this.select(this.spans.indexOf(event.target as HTMLElement)));
    this.words.addEventListener("keydown", (event) => this.key(event));
    const file = html("input", { type: "file", accept: ".txt,text/plain", "aria-label": "a prompt or transcript from a file", change: () => {
      void file.files?.[0]?.text().then((text) => { this.text.value = text; });
    } });
    const { config } = stock.facts;
    this.element = html("div", {},
      html("h1", {}, "A stock Llama writes out gradient descent"),
      html("p", { class: "lead" }, `An untouched LlamaForCausalLM, ${config.num_hidden_layers} layers, compiled and not trained. `, html("strong", {}, "The prompt says which algorithm it runs.")),
      html("section", { class: "card choose" }, this.methods),
      html("div", { class: "stage first text" },
        html("section", { class: "card plot" }, this.keys, this.plane.element,
          html("div", { class: "controls" }, button(icon("rewind"), () => this.restart(false), { "aria-label": "from the start" }), this.player,
            button(icon("next"), () => this.one(), { "aria-label": "one word", class: "single" }), button("to the end", () => this.finish()), this.count),
          this.refusal, this.facts),
        html("section", { class: "card prompts" }, this.heading, this.words, this.difference)),
      html("p", { class: "row" }, this.sha),
      html("div", { class: "inside" },
        html("section", { class: "card" }, this.word, html("h2", {}, "Where each head looks"), this.looks),
        html("section", { class: "card" }, html("h2", {}, "Its registers, after the last layer"), this.registers)),
      html("details", { class: "card row" }, html("summary", {}, "Run a prompt of your own"),
        html("p", { class: "note" }, "What ", html("code", {}, "emulon llama prompt"), " prints, or a transcript: everything up to the first step is taken."),
        this.text, html("div", { class: "controls" }, file, button("run it", () => this.runOwn(), { class: "main" }))));
    void stock.sha256().then((hash) => {
      this.sha.textContent = hash === "" ? "sha256 not computed: this page did not come over https" : `model.safetensors, sha256 ${hash}: the same for every method`;
      this.sha.classList.toggle("changed", hash !== "" && hash !== stock.facts.sha256);
      this.sha.dataset.sha256 = hash;
    });
    this.choose(this.method.name);
  }

  private get classes(): boolean {
    return this.method.link === "margin";
  }

  private rows(): { x: number[]; y: number }[] {
    return this.plane.points.map(({ x, y, label }) => (this.classes ? { x: [1, x, y], y: label } : { x: [1, x], y }));
  }

  private choose(name: string): void {
    const method = this.known.get(name);
    if (method === undefined) return;
    if (method !== this.method || this.own !== null) this.before = this.method;
    [this.method, this.own] = [method, null];
    this.plane.use(this.points[method.link], this.classes);
    const group = (title: string, link: string): HTMLElement => choice(title, "method", [...this.known.values()].filter((each) => each.link === link)
      .map((each) => ({ value: each.name, label: each.title, title: each.says })), name, (value) => {
      this.choose(value);
      (this.methods.querySelector("input:checked") as HTMLInputElement | null)?.focus();
    });
    this.methods.replaceChildren(group("numbers:", "residual"), group("two classes:", "margin"));
    this.restart();
  }

  // The prompt as Python's text_of writes it.
  private text_of(method: Method): string {
    const rows = this.rows();
    const weights = (rows[0]?.x ?? []).map((_, j) => `w${j + 1} ${numberWords(0)}`).join(" ");
    const data = rows.map(({ x, y }, i) => `#${i + 1} y ${numberWords(y)} ${x.map((each, j) => `x${j + 1} ${numberWords(each)}`).join(" ")}`);
    return [this.stock.facts.methods[method.name], ...data, `step:-1 ${weights}`, `step:0 ${weights}`].join("\n") + "\n";
  }

  private runOwn(): void {
    const words = this.text.value.split(/\s+/).filter((word) => word !== "");
    const first = words.findIndex((word) => word.startsWith("@"));
    this.own = (first < 0 ? words : words.slice(0, first - 1)).join(" ") + "\n";
    this.restart();
    this.words.scrollIntoView({ block: "center" });
  }

  private restart(play = true): void {
    const text = this.own ?? this.text_of(this.method);
    this.prompt = text.split(/\s+/).filter((word) => word !== "");
    [this.thoughts, this.written, this.chosen, this.hurry] = [[], [], -1, false];
    this.stock.reset();
    this.words.dataset.prompt = text;
    const unknown = this.prompt.find((word) => !this.numbers.has(word));
    this.refusal.textContent = unknown === undefined ? "" : `“${unknown.slice(0, 30)}” is no word of the language.`;
    this.heading.textContent = this.own === null ? `The prompt says: ${this.method.title}` : "Your prompt";
    this.drawPrompt(text);
    this.draw();
    this.play(play && unknown === undefined);
  }

  // Words of the prompt that the one before it does not have are marked.
  private drawPrompt(text: string): void {
    const other = this.own !== null || this.before === null || this.before.link !== this.method.link ? null : this.text_of(this.before).split(/\s+/);
    const kept = other === null ? new Set(this.prompt.keys()) : common(this.prompt, other);
    this.spans.length = 0;
    const lines = text.split("\n").filter((line) => line !== "");
    this.answer.replaceChildren();
    this.given.replaceChildren(this.span("<s>", "start"), "\n", ...lines.flatMap((line) => [
      ...line.split(/\s+/).flatMap((word) => [this.span(word, kept.has(this.spans.length - 1) ? "" : "changed"), " "]), "\n"]));
    this.given.scrollTop = 0;
    const changed = this.prompt.length - kept.size;
    this.difference.dataset.count = String(changed);
    this.difference.replaceChildren(...(other === null || this.before === null ? ["Choose another algorithm: words that change are marked. "]
      : [html("b", {}, `${changed} of ${this.prompt.length} words`), ` are not in ${this.before.title}’s prompt. `]), "Click a word to see its registers.");
  }

  private span(word: string, kind: string): HTMLElement {
    const made = html("span", { class: kind }, word);
    this.spans.push(made);
    return made;
  }

  private get done(): boolean {
    return this.written.at(-1) === "</s>" || this.thoughts.length >= this.stock.facts.config.max_position_embeddings;
  }

  // One token through the model: of the prompt first, then of what it wrote; what it says last is written down.
  private think(): void {
    const words = this.stock.facts.words;
    const at = this.thoughts.length;
    const reading = at === 0 ? words[this.stock.facts.config.bos_token_id] : at <= this.prompt.length ? this.prompt[at - 1] : this.written[at - 1 - this.prompt.length];
    const thought = this.stock.append(this.numbers.get(reading as string) as number);
    this.thoughts.push(thought);
    if (at < this.prompt.length) return;
    const next = words[thought.next] as string;
    this.written.push(next);
    if (next === "</s>") return;
    if (next.startsWith("step:") && this.written.length > 1) this.answer.append("\n");
    this.answer.append(this.span(next, "written"), " ");
  }

  private one(): void {
    if (this.refusal.textContent !== "") return;
    while (this.thoughts.length < this.prompt.length) this.think();
    if (!this.done) this.think();
    this.draw();
  }

  private finish(): void {
    this.hurry = true;
    this.play(true);
  }

  private play(on: boolean): void {
    const was = this.playing;
    this.playing = on && this.refusal.textContent === "" && !this.done;
    this.player.replaceChildren(icon(this.playing ? "pause" : "play"), this.playing ? "pause" : "write");
    if (was || !this.playing) return;
    let last = 0;
    const frame = (): void => {
      if (!this.playing || !this.element.isConnected) return this.play(false);
      const now = performance.now();
      const reading = this.thoughts.length < this.prompt.length;
      if (reading || this.hurry || now - last >= (still() ? 4 * PAUSE : PAUSE)) {
        last = now;
        do this.think();
        while (!this.done && (this.hurry || this.thoughts.length < this.prompt.length) && performance.now() - now < BUDGET);
        this.draw();
        if (this.done) return this.play(false);
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  private select(at: number): void {
    if (at < 0 || at >= this.thoughts.length) return;
    this.chosen = at === this.thoughts.length - 1 && this.playing ? -1 : at;
    this.drawWord();
  }

  private key(event: KeyboardEvent): void {
    const by = ({ ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 } as Record<string, number>)[event.key];
    if (by === undefined) return;
    event.preventDefault();
    this.select(Math.max(0, Math.min(this.thoughts.length - 1, (this.chosen < 0 ? this.thoughts.length - 1 : this.chosen) + by)));
    this.spans[this.chosen]?.scrollIntoView({ block: "nearest" });
  }

  private draw(): void {
    const { thoughts, prompt, written } = this;
    this.words.dataset.written = written.filter((word) => word !== "</s>").join(" ");
    this.words.dataset.done = String(this.done);
    this.count.textContent = thoughts.length <= prompt.length ? `reads ${thoughts.length} / ${prompt.length + 1}` : `${written.length} words`;
    if (written.length > 0 && this.chosen < 0) this.answer.scrollTop = this.answer.scrollHeight;
    this.drawPlot();
    this.drawWord();
  }

  // Weights of every step that is wholly written, the start before them.
  private iterates(): number[][] {
    const features = this.rows()[0]?.x.length ?? 0;
    const found = [Array<number>(features).fill(0)];
    this.written.forEach((word, at) => {
      const j = Number(/^w(\d+)$/.exec(word)?.[1] ?? 0);
      const [head, middle, last] = this.written.slice(at + 1, at + 4).map(Number);
      if (j === 0 || last === undefined) return;
      if (j === 1) found.push([]);
      found.at(-1)?.push((head as number) + (middle as number) / 1e5 + last / 1e8);
    });
    if ((found.at(-1) as number[]).length < features) found.pop();
    return found;
  }

  private drawPlot(): void {
    const { method } = this;
    this.plane.element.classList.toggle("stale", this.own !== null);
    if (this.own !== null) {
      this.plane.drawFit(null);
      this.keys.replaceChildren(html("p", { class: "legend" }, "The plot shows the page’s own points, not those of your prompt."));
      return this.facts.replaceChildren();
    }
    const found = this.iterates();
    const data = samplesOf(method.link, this.rows());
    const exact = found.slice(1).reduce<number[][]>((all, _, t) => [...all, descend(method, data as Sample[], all[t] as number[], all[Math.max(0, t - 1)] as number[])], [found[0] as number[]]);
    const score = (w: number[]) => (x: number, y: number): number => (w[0] as number) + (w[1] as number) * x + (this.classes ? (w[2] as number) * y : 0);
    const [last, wanted] = [found.at(-1) as number[], exact.at(-1) as number[]];
    this.plane.drawFit({ own: score(last), exact: score(wanted), past: found.slice(0, -1).map(score), ran: null, beside: null });
    this.keys.replaceChildren(legend(`the Llama’s line, step ${found.length - 1}`, `the exact ${method.title}`));
    const off = Math.max(...last.map((each, k) => Math.abs(each - (wanted[k] as number))));
    const entry = (label: string, value: string): HTMLElement => html("div", {}, html("dt", {}, label), html("dd", {}, value));
    this.facts.replaceChildren(...last.map((each, k) => entry(`w${k + 1}${k === 0 ? ", constant" : this.classes ? "" : ", slope"}`, each.toFixed(8))), entry("off by", scientific(off)));
  }

  private drawWord(): void {
    const at = this.chosen < 0 ? this.thoughts.length - 1 : this.chosen;
    const thought = this.thoughts[at];
    for (const span of this.words.querySelectorAll(".here, .seen")) span.classList.remove("here", "seen");
    if (thought === undefined) return this.word.replaceChildren("Nothing read yet");
    const { facts } = this.stock;
    this.spans[at]?.classList.add("here");
    this.word.replaceChildren("At ", html("code", {}, this.spans[at]?.textContent ?? ""), `, word ${at}: next comes `, html("code", {}, facts.words[thought.next] ?? ""));
    const held = Object.entries(facts.registers).flatMap(([name, [start, stop]]) => {
      const values = Array.from(thought.stream.subarray(start, stop), (value) => (Math.abs(value) < NOTHING ? 0 : value));
      return values.some((value) => value !== 0) ? [html("div", {}, html("dt", {}, name), html("dd", {}, shown(values)))] : [];
    });
    this.registers.replaceChildren(...held);
    this.registers.dataset.values = JSON.stringify(Array.from(thought.stream));
    // A head that finds nothing looks at the first word, whose registers are empty.
    this.looks.dataset.looks = JSON.stringify(thought.looks);
    const looking = thought.looks.filter(({ to }) => to.some(([token]) => token > 0 || at === 0));
    for (const { to } of looking) for (const [token] of to) if (token > 0) this.spans[token]?.classList.add("seen");
    this.looks.replaceChildren(...looking.map((look) => this.look(look, at)));
  }

  private look({ layer, head, to }: Look, at: number): HTMLElement {
    const { where, reads } = this.stock.facts.heads[layer]?.[head] ?? { where: "", reads: [] };
    const targets = to.map(([token, weight]) => html("span", { class: "target" }, html("code", {}, this.spans[token]?.textContent ?? ""), ` ${token === at ? "itself" : `${at - token} back`}${weight > 0.996 ? "" : `, ${(100 * weight).toFixed(0)} %`}`));
    const mark = (on: boolean) => (): void => to.forEach(([token]) => this.spans[token]?.classList.toggle("aimed", on));
    return html("li", { pointerenter: mark(true), pointerleave: mark(false) }, html("p", {}, html("b", {}, `layer ${layer + 1}, head ${head + 1} `), ...targets.slice(0, 6), to.length > 6 ? `and ${to.length - 6} more` : ""),
      html("p", { class: "note" }, `${reads.join("; ")} · ${where}`));
  }

  show(words: string[]): void {
    if (words[0] !== undefined && this.known.has(words[0]) && words[0] !== this.method.name) this.choose(words[0]);
    else if (!this.done) this.play(true);
  }

  redraw(): void {
    // Colours come from the style sheet alone.
  }
}

// A code as its signs, anything else as numbers.
function shown(values: number[]): string {
  if (values.length > 1 && values.every((value) => Math.abs(value) === 1)) return values.map((value) => (value > 0 ? "+" : "−")).join("");
  return values.map(short).join(" ");
}

// Places of the first text's words that are in a longest common subsequence with the second.
function common(own: string[], other: string[]): Set<number> {
  const long = Array.from({ length: own.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = own.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      const [here, below] = [long[i] as Uint16Array, long[i + 1] as Uint16Array];
      here[j] = own[i] === other[j] ? (below[j + 1] as number) + 1 : Math.max(below[j] as number, here[j + 1] as number);
    }
  }
  const kept = new Set<number>();
  for (let i = 0, j = 0; i < own.length && j < other.length; ) {
    if (own[i] === other[j]) [i, j] = [kept.add(i).size && i + 1, j + 1];
    else if ((long[i + 1]?.[j] as number) >= (long[i]?.[j + 1] as number)) i++;
    else j++;
  }
  return kept;
}
