// One frozen weight, and a slider that bends it: what the page shows comes out of the attention.

import { button, html } from "./draw";
import type { Buffer, Interpreter } from "./interpreter";

const LABELS: Record<Buffer, string> = {
  values: "layer 1, the value of key", slopes: "layer 1, the slope of key", intercepts: "layer 1, the intercept of key",
  "assemble.w_k": "layer 2, W_K, entry", "assemble.w_q": "layer 2, W_Q, entry", "assemble.w_v": "layer 2, W_V, entry",
};

export class Bend {
  readonly element: HTMLElement;
  private readonly original: Map<Buffer, Float64Array>;
  private buffer: Buffer = "values";
  private index = 0;
  private readonly buffers: HTMLSelectElement;
  private readonly entry: HTMLInputElement;
  private readonly slider: HTMLInputElement;
  private readonly told = html("p", { class: "note", id: "bent", role: "status" });

  constructor(private readonly interpreter: Interpreter, private readonly changed: () => void) {
    this.original = new Map([...interpreter.buffers].map(([name, { values }]) => [name, values.slice()]));
    this.buffers = html("select", { "aria-label": "which weights", change: () => this.choose(this.buffers.value as Buffer, this.start(this.buffers.value as Buffer)) },
      ...Object.entries(LABELS).map(([value, label]) => html("option", { value }, label)));
    this.entry = html("input", { type: "number", min: 1, "aria-label": "which of them",
      change: () => this.choose(this.buffer, Number(this.entry.value) - 1) });
    this.slider = html("input", { type: "range", min: -100, max: 100, value: 0, id: "bend", "aria-label": "bend it by up to ten per cent", input: () => this.apply() });
    this.element = html("section", { class: "card" },
      html("h2", {}, "Bend one frozen weight"),
      html("p", { class: "note", style: "margin:0 0 10px" }, "Every number here comes out of the two layers. Move one of their weights by a few per cent, and see the algorithm go wrong."),
      html("div", { class: "controls" }, this.buffers, this.entry, html("span", { class: "grow" }, this.slider), button("let go", () => this.release())), this.told);
    this.choose("values", this.start("values"));
  }

  // A weight that matters: for the number line the key that weighs most at 1, else the first entry that is not zero.
  private start(buffer: Buffer): number {
    if (buffer.startsWith("assemble")) return (this.original.get(buffer) as Float64Array).findIndex((value) => value !== 0);
    const weights = this.interpreter.line(1);
    return weights.indexOf(Math.max(...weights));
  }

  get active(): boolean {
    return Number(this.slider.value) !== 0;
  }

  get key(): number {
    return this.buffer.startsWith("assemble") ? -1 : this.index;
  }

  choose(buffer: Buffer, index: number): void {
    const was = this.active;
    this.restore();
    const values = this.original.get(buffer) as Float64Array;
    [this.buffer, this.index] = [buffer, Math.max(0, Math.min(values.length - 1, Math.round(index) || 0))];
    this.buffers.value = buffer;
    this.entry.max = String(values.length);
    this.entry.value = String(this.index + 1);
    this.apply(was);
  }

  private restore(): void {
    this.interpreter.set(this.buffer, this.index, (this.original.get(this.buffer) as Float64Array)[this.index] as number);
  }

  private release(): void {
    this.slider.value = "0";
    this.apply();
  }

  private apply(tell = true): void {
    const before = (this.original.get(this.buffer) as Float64Array)[this.index] as number;
    const part = Number(this.slider.value) / 1000;
    // A weight that is zero is moved by so much of 1.
    const now = before === 0 ? part : before * (1 + part);
    this.interpreter.set(this.buffer, this.index, now);
    this.told.textContent = part === 0 ? `It is ${before}, as it was frozen.` : `It was ${before}; now it is ${now} (${part > 0 ? "+" : "−"}${Math.abs(100 * part).toFixed(1)} %).`;
    this.told.classList.toggle("warn", part !== 0);
    if (tell) this.changed();
  }
}
