// What happens in the two layers: the prompt, its slots by name, who attends to whom, and the number line of layer 1.

import { html, paint, scientific, short, svg } from "./draw";
import type { Interpreter } from "./interpreter";
import type { Trace } from "./program";

const ROW = 9;
const LINE = { width: 560, height: 120 };
// What stands in a slot, in words; the names are the library's own.
const MEANINGS: Record<string, string> = {
  key_x: "slope · x of its sample", key_y: "slope · y", key_bias: "intercept of its grid point", key_code: "code of its sample",
  value: "value · x", fixed: "what w does not change", state: "the weights w", before: "w one step ago",
  query_x: "w, as a question", query_y: "−1, as a question", query_bias: "1, as a question", query_code: "code, as a question",
};

export class Inside {
  readonly element: HTMLElement;
  private readonly prompt = html("canvas", { tabindex: 0, role: "img", "aria-label": "the prompt, tokens across and slots down; arrow keys move the cursor" });
  private readonly layer2 = html("canvas", { tabindex: 0, role: "img", "aria-label": "attention of layer 2, tokens across and asking samples down; arrow keys move the cursor" });
  private readonly names = html("ul", { "aria-hidden": "true" });
  private readonly askers = html("ul", { "aria-hidden": "true" });
  private readonly cursors = [html("b"), html("b")] as const;
  private readonly slots = html("dl", { class: "slots" });
  private readonly about = html("p", { class: "note", "aria-live": "polite" });
  private readonly bars = svg("svg", { viewBox: `0 0 ${LINE.width} ${LINE.height}`, role: "img", "aria-label": "layer 1: weights over the keys of the number line" });
  private readonly asked = html("p", { class: "note" });
  private readonly heading = html("h2", {}, "The prompt");
  private trace: Trace | null = null;
  private token = 0;
  private feature = 0;

  constructor(private readonly interpreter: Interpreter, private readonly pick: (key: number) => void) {
    for (const canvas of [this.prompt, this.layer2]) {
      const over = (event: PointerEvent): void => this.over(canvas, event);
      canvas.addEventListener("pointermove", over);
      canvas.addEventListener("pointerdown", over);
      canvas.addEventListener("keydown", (event) => this.key(canvas, event));
    }
    const framed = (canvas: HTMLCanvasElement, names: HTMLElement, cursor: HTMLElement): HTMLElement =>
      html("div", { class: "matrix" }, names, html("div", { class: "cursor" }, canvas, cursor));
    this.element = html("div", { class: "inside" },
      html("section", { class: "card" }, this.heading, framed(this.prompt, this.names, this.cursors[0]),
        html("h2", { style: "margin-top:18px" }, "Layer 2: which token answers which sample"),
        framed(this.layer2, this.askers, this.cursors[1]), this.about),
      html("div", { class: "stack" },
        html("section", { class: "card" }, html("h2", {}, "The token under the cursor"), this.slots),
        html("section", { class: "card" }, html("h2", {}, "Layer 1: one number, read by a softmax"), this.bars, this.asked)));
  }

  show(trace: Trace): void {
    const first = this.trace === null;
    this.trace = trace;
    if (first) this.askFor(0);
    this.token = Math.min(this.token, this.tokens - 1);
    this.feature = Math.min(this.feature, this.width - 1);
    this.redraw();
  }

  get tokens(): number {
    return this.trace === null ? 0 : this.trace.samples * this.trace.phase.keys;
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
    const { tokens, width } = this;
    this.heading.textContent = `The ${trace.phase.name === "gradient" ? "prompt" : "second prompt, for the penalty"}: ${width} slots × ${tokens} tokens`;
    const tops = trace.tokens.map((column) => Math.max(1e-12, ...column.map(Math.abs)));
    paint(this.prompt, width, tokens, (f, t) => {
      const part = ((trace.tokens[f] as Float64Array)[t] as number) / (tops[f] as number);
      return 0.85 * Math.sign(part) * Math.abs(part) ** 0.7;
    });
    this.prompt.style.height = `${width * ROW}px`;
    paint(this.layer2, trace.samples, tokens, (i, t) => (trace.weights[i * tokens + t] as number) ** 0.5);
    this.layer2.style.height = `${Math.max(60, trace.samples * ROW)}px`;
    this.names.replaceChildren(...trace.phase.slots.map(([name, start, stop]) =>
      html("li", { style: `top:${((start + stop) / 2) * ROW - 5}px` }, name)));
    this.askers.replaceChildren(html("li", { style: "top:2px" }, "sample 1"),
      html("li", { style: `top:${Math.max(60, trace.samples * ROW) - 12}px` }, `sample ${trace.samples}`));
    this.drawCursor();
  }

  private over(canvas: HTMLCanvasElement, event: PointerEvent): void {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.tokens);
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
    const [left, wide] = [(100 * token) / tokens, 100 / tokens];
    for (const cursor of this.cursors) cursor.setAttribute("style", `left:calc(${left}% - 1px);width:calc(${wide}% + 2px)`);
    const { keys, slots } = trace.phase;
    const [sample, point] = [Math.floor(token / keys), token % keys];
    const entries = slots.map(([name, start, stop]) => {
      const values = Array.from({ length: stop - start }, (_, k) => (trace.tokens[start + k] as Float64Array)[token] as number);
      const on = this.feature >= start && this.feature < stop;
      return html("div", { class: on ? "on" : "", title: MEANINGS[name] ?? name }, html("dt", {}, name),
        html("dd", {}, values.every((value) => value === 0) ? "0" : values.map(short).join(" ")));
    });
    this.slots.replaceChildren(...entries);
    Array.from(this.names.children).forEach((li, k) => {
      const [, start, stop] = slots[k] as [string, number, number];
      li.classList.toggle("on", this.feature >= start && this.feature < stop);
    });
    let top = 0;
    for (let i = 1; i < trace.samples; i++) {
      if ((trace.weights[i * tokens + token] as number) > (trace.weights[top * tokens + token] as number)) top = i;
    }
    const weight = trace.weights[top * tokens + token] as number;
    this.about.textContent = `Token ${token + 1}: sample ${sample + 1}, grid point ${point + 1} of ${keys}. ` +
      (weight < 1e-12 ? "No sample's question weighs it." : `Sample ${top + 1}'s question gives it the weight ${scientific(weight)}.`);
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
