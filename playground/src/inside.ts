// The prompt, beside that of another algorithm; its slots by name, who attends to whom, and the number line of layer 1.

import { html, paint, scientific, short, svg } from "./draw";
import type { Interpreter } from "./interpreter";
import type { Phase, Trace } from "./program";

const LINE = { width: 560, height: 120 };
// What stands in a slot, in words; the names are the library's own.
const MEANINGS: Record<string, string> = {
  key_x: "slope · x of its sample", key_y: "slope · y", key_bias: "intercept of its grid point", key_code: "code of its sample",
  value: "value · x", fixed: "what w does not change", state: "the weights w", before: "w one step ago",
  query_x: "w, as a question", query_y: "−1, as a question", query_bias: "1, as a question", query_code: "code, as a question",
};

// Columns between the tokens of a prompt and the weights that it carries.
const GAP = 3;
// Slots in groups, for a picture too small for all names.
const GROUPS: [RegExp, string][] = [[/^key_/, "keys"], [/^(value|fixed)/, "values"], [/^(state|before)/, "weights w"], [/^query_/, "questions"]];

export interface Stated {
  readonly phase: Phase;
  readonly tokens: Float64Array[];
}

// The prompt of another algorithm, on the same points and at the same weights.
export interface Other extends Stated {
  readonly title: string;
}

interface Changes {
  readonly cells: Uint8Array;
  readonly groups: Set<string>;
  count: number;
}

export class Inside {
  readonly element: HTMLElement;
  // The two prompts, and in words what differs.
  readonly prompts: HTMLElement;
  private readonly prompt = html("canvas", { tabindex: 0, role: "img", "aria-label": "the prompt, tokens across and slots down; arrow keys move the cursor" });
  private readonly layer2 = html("canvas", { tabindex: 0, role: "img", "aria-label": "attention of layer 2, tokens across and asking samples down; arrow keys move the cursor" });
  private readonly names = html("ul", { "aria-hidden": "true" });
  private readonly beside = html("canvas", { role: "img", "aria-label": "the prompt of the other algorithm" });
  private readonly besideNames = html("ul", { "aria-hidden": "true" });
  private readonly besideHeading = html("h2");
  private readonly difference = html("p", { class: "note", id: "difference", "aria-live": "polite" });
  private readonly askers = html("ul", { "aria-hidden": "true" });
  private readonly cursors = [html("b"), html("b")] as const;
  private readonly slots = html("dl", { class: "slots" });
  private readonly about = html("p", { class: "note", "aria-live": "polite" });
  private readonly bars = svg("svg", { viewBox: `0 0 ${LINE.width} ${LINE.height}`, role: "img", "aria-label": "layer 1: weights over the keys of the number line" });
  private readonly asked = html("p", { class: "note" });
  private readonly heading = html("h2", {}, "The prompt");
  private trace: Trace | null = null;
  private other: Other | null = null;
  private title = "";
  private token = 0;
  private feature = 0;

  constructor(private readonly interpreter: Interpreter, private readonly pick: (key: number) => void, choose: HTMLElement, says: HTMLElement) {
    for (const canvas of [this.prompt, this.layer2]) {
      const over = (event: PointerEvent): void => this.over(canvas, event);
      canvas.addEventListener("pointermove", over);
      canvas.addEventListener("pointerdown", over);
      canvas.addEventListener("keydown", (event) => this.key(canvas, event));
    }
    const framed = (canvas: HTMLCanvasElement, names: HTMLElement, cursor: HTMLElement): HTMLElement =>
      html("div", { class: "matrix" }, names, html("div", { class: "cursor" }, canvas, cursor));
    this.prompts = html("section", { class: "card prompts" }, this.heading, framed(this.prompt, this.names, this.cursors[0]), under(), says, this.difference, choose,
      this.besideHeading, framed(this.beside, this.besideNames, html("b", { hidden: true })), under());
    this.element = html("div", { class: "inside" },
      html("section", { class: "card" },
        html("h2", {}, "Layer 2: which token answers which point"),
        framed(this.layer2, this.askers, this.cursors[1]), this.about),
      html("div", { class: "stack" },
        html("section", { class: "card" }, html("h2", {}, "The token under the cursor"), this.slots),
        html("section", { class: "card" }, html("h2", {}, "Layer 1: one number, read by a softmax"), this.bars, this.asked)));
  }

  show(trace: Trace, title: string, other: Other | null): void {
    const first = this.trace === null;
    [this.trace, this.title, this.other] = [trace, title, other];
    if (first) this.askFor(0);
    this.token = Math.min(this.token, this.tokens - 1);
    this.feature = Math.min(this.feature, this.width - 1);
    this.redraw();
  }

  get tokens(): number {
    return this.trace === null ? 0 : this.trace.samples * this.trace.phase.keys;
  }

  private get columns(): number {
    return this.trace === null ? 1 : columnsOf(this.trace);
  }

  private get width(): number {
    return this.trace?.phase.slots.at(-1)?.[2] ?? 0;
  }

  // To the token that a sample's question weighs most.
  askFor(sample: number): void {
    if (this.trace === null || sample >= this.trace.samples) return;
    const row = this.trace.weights.subarray(sample * this.tokens, (sample + 1) * this.tokens);
    this.token = row.indexOf(Math.max(...row));
    this.drawCursor();
  }

  redraw(): void {
    const { trace } = this;
    if (trace === null) return;
    const { tokens } = this;
    const second = trace.phase.name === "gradient" ? "" : "’s second prompt, for the penalty";
    this.heading.textContent = `The prompt says: ${this.title}${second}`;
    const changed = this.other === null ? null : changes(trace, this.other);
    this.draw(this.prompt, this.names, trace, changed);
    this.drawOther(trace, this.other, changed);
    paint(this.layer2, trace.samples, tokens, (i, t) => (trace.weights[i * tokens + t] as number) ** 0.5);
    this.layer2.style.height = `${Math.max(60, trace.samples * 9)}px`;
    this.askers.replaceChildren(html("li", { style: "top:2px" }, "point 1"),
      html("li", { style: `top:${Math.max(60, trace.samples * 9) - 12}px` }, `point ${trace.samples}`));
    this.drawCursor();
  }

  private draw(canvas: HTMLCanvasElement, names: HTMLElement, { phase, tokens }: Stated, changed: Changes | null): void {
    const count = (tokens[0] as Float64Array).length;
    const tops = tokens.map((column) => Math.max(1e-12, ...column.map(Math.abs)));
    const [width, columns] = [phase.slots.at(-1)?.[2] ?? 0, columnsOf({ phase, tokens })];
    paint(canvas, width, columns, (f, t) => {
      const part = t < count ? ((tokens[f] as Float64Array)[t] as number) / (tops[f] as number) : weight(phase, f, t - count - GAP);
      return (changed === null || changed.cells[f * columns + t] ? 0.9 : 0.18) * Math.sign(part) * Math.abs(part) ** 0.7;
    });
    canvas.style.height = `calc(${width} * var(--row))`;
    names.replaceChildren(...GROUPS.flatMap(([kind, label]) => {
      const slots = phase.slots.filter(([name]) => kind.test(name));
      if (slots.length === 0) return [];
      const [start, stop] = [(slots[0] as [string, number, number])[1], (slots.at(-1) as [string, number, number])[2]];
      return [html("li", { class: changed?.groups.has(label) === true ? "changed" : "", "data-group": label, style: `top:calc(${(start + stop) / 2} * var(--row) - 6px)` }, label)];
    }));
  }

  private drawOther(trace: Trace, other: Other | null, own: Changes | null): void {
    this.prompts.classList.toggle("alone", other === null);
    if (other === null || own === null) return;
    this.besideHeading.textContent = `Beside it: ${other.title}`;
    this.draw(this.beside, this.besideNames, other, changes(other, trace));
    const keys = trace.phase.keys === other.phase.keys ? `${trace.phase.keys} tokens a point in both` : `${trace.phase.keys} tokens a point, there ${other.phase.keys}`;
    this.difference.dataset.count = String(own.count);
    this.difference.replaceChildren(html("b", {}, `${own.count} of ${this.width * (this.columns - GAP)} numbers differ`),
      ` from ${other.title}’s prompt (${[...own.groups].join(", ")}); ${keys}. Pale: the same in both.`);
  }

  private over(canvas: HTMLCanvasElement, event: PointerEvent): void {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * (canvas === this.prompt ? this.columns : this.tokens));
    this.token = Math.max(0, Math.min(this.tokens - 1, column));
    if (canvas === this.prompt) {
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.width);
      this.feature = Math.max(0, Math.min(this.width - 1, row));
    }
    this.drawCursor();
  }

  private key(canvas: HTMLCanvasElement, event: KeyboardEvent): void {
    const moves: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.token = Math.max(0, Math.min(this.tokens - 1, this.token + move[0]));
    if (canvas === this.prompt) this.feature = Math.max(0, Math.min(this.width - 1, this.feature + move[1]));
    this.drawCursor();
  }

  private drawCursor(): void {
    const { trace, token, tokens } = this;
    if (trace === null) return;
    [this.columns, tokens].forEach((all, k) => {
      (this.cursors[k] as HTMLElement).setAttribute("style", `left:calc(${(100 * token) / all}% - 1px);width:calc(${100 / all}% + 2px)`);
    });
    const { keys, slots } = trace.phase;
    const [sample, point] = [Math.floor(token / keys), token % keys];
    const entries = slots.map(([name, start, stop]) => {
      const values = Array.from({ length: stop - start }, (_, k) => (trace.tokens[start + k] as Float64Array)[token] as number);
      const on = this.feature >= start && this.feature < stop;
      return html("div", { class: on ? "on" : "", title: MEANINGS[name] ?? name }, html("dt", {}, name),
        html("dd", {}, values.every((value) => value === 0) ? "0" : values.map(short).join(" ")));
    });
    this.slots.replaceChildren(...entries);
    let top = 0;
    for (let i = 1; i < trace.samples; i++) {
      if ((trace.weights[i * tokens + token] as number) > (trace.weights[top * tokens + token] as number)) top = i;
    }
    const weight = trace.weights[top * tokens + token] as number;
    this.about.textContent = `Token ${token + 1}: point ${sample + 1}, key ${point + 1} of ${keys}. ` +
      (weight < 1e-12 ? "No point’s question weighs it." : `Point ${top + 1}’s question gives it the weight ${scientific(weight)}.`);
    this.drawLine();
  }

  // The head of layer 1 that reads the slot under the cursor.
  private drawLine(): void {
    const { trace, token, feature, interpreter } = this;
    if (trace === null) return;
    const row = trace.phase.reader(feature);
    const s = row < 0 ? 0 : ((trace.asked[row] as Float64Array)[token] as number);
    const read = row < 0 ? interpreter.read(0) : ((trace.read[row] as Float64Array)[token] as number);
    const weights = interpreter.line(s);
    // The keys that weigh anything, with some room: the line has hundreds.
    const heavy = Array.from(weights.keys()).filter((r) => (weights[r] as number) > 1e-7);
    const middle = ((heavy[0] as number) + (heavy.at(-1) as number)) / 2;
    const half = Math.max(22, ((heavy.at(-1) as number) - (heavy[0] as number)) * 0.8);
    const [first, last] = [Math.max(0, Math.floor(middle - half)), Math.min(weights.length - 1, Math.ceil(middle + half))];
    const step = LINE.width / (last - first + 1);
    const tallest = Math.max(...weights);
    const parts: SVGElement[] = [svg("line", { class: "grid", x1: 0, x2: LINE.width, y1: LINE.height - 17, y2: LINE.height - 17 })];
    for (let r = first; r <= last; r++) {
      const weight = weights[r] as number;
      const height = (LINE.height - 24) * Math.sqrt(weight / tallest);
      if (height > 0.4) parts.push(svg("rect", { class: r === this.bent ? "bar bent" : "bar", x: (r - first) * step + 0.6, width: Math.max(1, step - 1.2), y: LINE.height - 17 - height, height, rx: 1.5 }));
      parts.push(svg("rect", { class: "bar-ground", x: (r - first) * step, width: step, y: 0, height: LINE.height, click: () => this.pick(r) },
        svg("title", {}, `key ${r + 1}: weight ${scientific(weight)}; click to bend its value`)));
    }
    parts.push(svg("text", { x: 0, y: LINE.height - 3 }, `key ${first + 1}`), svg("text", { x: LINE.width, y: LINE.height - 3, "text-anchor": "end" }, `key ${last + 1} of ${weights.length}`));
    this.bars.replaceChildren(...parts);
    const name = trace.phase.slots.find(([, start, stop]) => feature >= start && feature < stop)?.[0] ?? "";
    this.asked.textContent = row < 0
      ? `No head reads ${name}.`
      : `The head that reads ${name} asks for ${s === 0 ? "0" : String(s)} and reads ${String(read)}: the mean of ${weights.length} frozen values, weighted so.`;
  }

  bent = -1;
}

const columnsOf = ({ phase, tokens }: Stated): number => (tokens[0] as Float64Array).length + GAP + phase.rows.length;
const under = (): HTMLElement => html("p", { class: "under", "aria-hidden": "true" }, html("span", {}, "tokens"), html("span", {}, "weights it carries"));

// What row r of the emulated head multiplies slot f by.
function weight(phase: Phase, f: number, r: number): number {
  const row = phase.rows[r];
  const k = row?.at.indexOf(f) ?? -1;
  return k < 0 ? 0 : (row?.by[k] as number);
}

// The numbers of a prompt that are not those of another one: keys and values are compared point by point.
function changes(here: Stated, there: Stated): Changes {
  const [mine, theirs] = [here.phase.keys, there.phase.keys];
  const [count, columns] = [(here.tokens[0] as Float64Array).length, columnsOf(here)];
  const starts = new Map(there.phase.slots.map(([name, start]) => [name, start]));
  const found: Changes = { cells: new Uint8Array(here.tokens.length * columns), groups: new Set(), count: 0 };
  const compare = (at: number, group: string, a: number, b: number): void => {
    if (Math.abs(a - b) <= 1e-12 * Math.max(Math.abs(a), Math.abs(b))) return;
    found.cells[at] = 1;
    found.groups.add(group);
    found.count++;
  };
  for (const [name, start, stop] of here.phase.slots) {
    const group = GROUPS.find(([kind]) => kind.test(name))?.[1] ?? name;
    const asks = name.startsWith("query"); // the first tokens do, one for each point
    for (let f = start; f < stop; f++) {
      const g = (starts.get(name) ?? Infinity) + f - start;
      for (let t = 0; t < count; t++) {
        const at = asks ? t : Math.floor(t / mine) * theirs + Math.min(t % mine, theirs - 1);
        compare(f * columns + t, group, here.tokens[f]?.[t] as number, there.tokens[g]?.[at] ?? (asks ? 0 : NaN));
      }
      here.phase.rows.forEach((_, r) => compare(f * columns + count + GAP + r, "weights it carries", weight(here.phase, f, r), weight(there.phase, g, r)));
    }
  }
  return found;
}
