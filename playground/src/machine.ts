// Scene 5: a GPT-2 whose weights were compiled, not trained: stochastic gradient descent, layer by layer.

import { atMost, button, html, icon, paint, scientific, short, still, svg } from "./draw";
import { type Pass, runMachine } from "./decoder";
import { fetchBytes, readOnnx, type TensorFile } from "./files";
import type { Scene } from "./main";
import { Plane, type Point } from "./plane";

interface Slot {
  start: number;
  stop: number;
  role: string;
  scale: number;
  labels: string[];
}

interface Labels {
  certificate: { bound: number };
  tokens: number;
  slots: Record<string, Slot>;
  layers: string[][];
}

const RATE = 0.4;
const HEADS = 2;
const START: Point[] = [[-0.6, -0.5], [0.7, 0.8], [-0.2, 0.25], [0.45, 0.15], [0.9, 0]].map(([x, y]) => ({ x, y, label: 1 }) as Point);

export async function machine(): Promise<Scene> {
  return new Machine(readOnnx(await fetchBytes("data/machine.onnx")));
}

class Machine implements Scene {
  readonly element: HTMLElement;
  private readonly labels: Labels;
  private readonly plane: Plane;
  private layer: number;
  private playing = false;
  private pass: Pass | null = null;
  private readonly table = html("div", { class: "scroll registers", id: "registers", tabindex: 0, role: "region", "aria-label": "registers at every token" });
  private readonly instructions = html("ul", { class: "instructions" });
  private readonly slider: HTMLInputElement;
  private readonly count = html("output");
  private readonly maps = html("div", { style: "display:grid;grid-template-columns:1fr 1fr;gap:16px" });
  private readonly numbers = html("dl", { class: "numbers" });
  private readonly player: HTMLButtonElement;
  private readonly refusal = html("p", { class: "note warn", role: "status" });

  constructor(private readonly file: TensorFile) {
    this.labels = JSON.parse(file.facts.get("slots") ?? "{}") as Labels;
    const depth = this.labels.layers.length;
    this.layer = depth;
    this.plane = new Plane(START.length, () => this.run(), () => undefined);
    this.plane.numbered = true;
    this.plane.least = START.length;
    this.plane.use(structuredClone(START), false, 1, 1);
    this.slider = html("input", { type: "range", min: 0, max: depth, value: depth, "aria-label": "layer", id: "layer", input: () => this.go(Number(this.slider.value)) });
    this.player = button("play", () => this.play(!this.playing), { class: "main" });
    this.player.prepend(icon("play"));
    this.element = html("div", {},
      html("h1", {}, "Inside a compiled GPT-2"),
      html("p", { class: "lead" }, "GPT-2’s own blocks: LayerNorm, causal attention, GELU, residuals. The weights were ", html("strong", {}, "compiled from a program"),
        ", not trained. Its residual stream is a bank of registers; watch w being learned from points 1 to 4, to predict the fifth."),
      html("div", { class: "stage" },
        html("section", { class: "card" },
          html("p", { class: "legend" }, html("span", {}, html("i", { class: "fit-key" }), "w at the last token"), html("span", {}, html("i", {}), "exact SGD over points 1–4"), html("span", {}, html("i", { style: "border-top:1px solid var(--accent);opacity:0.5" }), "w at earlier tokens")),
          this.plane.element, this.refusal, this.numbers),
        html("div", { class: "side" },
          html("section", { class: "card" }, html("h2", {}, "Layer"),
            html("div", { class: "controls", style: "margin-top:0" }, button(icon("back"), () => this.go(this.layer - 1), { "aria-label": "one layer back" }), this.player, button(icon("next"), () => this.go(this.layer + 1), { "aria-label": "one layer on" })),
            html("div", { class: "controls" }, html("span", { class: "grow" }, this.slider), this.count), this.instructions),
          html("section", { class: "card" }, html("h2", {}, "Attention of this layer, by head"), this.maps))),
      html("section", { class: "card", style: "margin-top:18px" }, html("h2", {}, "The registers, at every token"), this.table,
        html("p", { class: "note" }, "Outlined: what this layer’s instructions wrote. Tokens are x₁, y₁, x₂, … as in a prompt; w stands at every one of them.")));
    this.run();
  }

  private embed(): Float64Array[] {
    const positions = this.file.tensors.get("positions");
    const width = positions?.shape[1] ?? 0;
    const { x: xs, y: ys } = this.labels.slots as { x: Slot; y: Slot };
    const tokens = Array.from({ length: this.labels.tokens }, () => new Float64Array(width));
    this.plane.points.forEach(({ x, y }, i) => {
      const [left, right] = [tokens[1 + 2 * i] as Float64Array, tokens[2 + 2 * i] as Float64Array | undefined];
      left[xs.start] = 1 / xs.scale;
      left[xs.start + 1] = x / xs.scale;
      if (right !== undefined && i < this.plane.points.length - 1) right[ys.start] = y / ys.scale;
    });
    return tokens;
  }

  private run(): void {
    this.pass = runMachine(this.file, this.embed(), HEADS);
    this.redraw();
  }

  private value(layer: number, token: number, slot: Slot, k: number): number {
    return slot.scale * ((this.pass?.streams[layer]?.[token] as Float64Array)[slot.start + k] as number);
  }

  // The same in plain doubles: one step for each point, in their order.
  private exact(): number[] {
    return this.plane.points.slice(0, -1).reduce<number[]>((w, { x, y }) => {
      const off = (w[0] as number) + (w[1] as number) * x - y;
      return [(w[0] as number) - RATE * off, (w[1] as number) - RATE * off * x];
    }, [0, 0]);
  }

  private go(layer: number): void {
    this.layer = Math.max(0, Math.min(this.labels.layers.length, layer));
    this.redraw();
  }

  private play(on: boolean): void {
    this.playing = on;
    this.player.replaceChildren(icon(on ? "pause" : "play"), on ? "pause" : "play");
    if (!on) return;
    if (this.layer >= this.labels.layers.length) this.layer = -1;
    const tick = (): void => {
      if (!this.playing || !this.element.isConnected) return void (this.playing && this.play(false));
      this.go(this.layer + 1);
      if (this.layer >= this.labels.layers.length) return this.play(false);
      window.setTimeout(tick, still() ? 1600 : 900);
    };
    tick();
  }

  show(words: string[]): void {
    if (words[0] !== undefined && words[0] !== "" && Number.isFinite(Number(words[0]))) this.layer = Math.round(Number(words[0]));
    this.go(this.layer);
  }

  redraw(): void {
    if (this.pass === null) return;
    const { layer, labels } = this;
    const depth = labels.layers.length;
    this.slider.value = String(layer);
    this.count.textContent = `${layer} of ${depth}`;
    const lines = layer === 0 ? ["The inputs, and nothing done yet."] : (labels.layers[layer - 1] as string[]);
    this.instructions.replaceChildren(...lines.map((line) => html("li", {}, line)));
    this.drawTable(lines);
    this.drawMaps();
    this.drawLines();
  }

  private drawLines(): void {
    const [w, last, depth] = [this.labels.slots.w as Slot, this.labels.tokens - 1, this.labels.layers.length];
    const at = (layer: number, token: number): number[] => [0, 1].map((k) => this.value(layer, token, w, k));
    const line = (v: number[]) => (x: number): number => (v[0] as number) + (v[1] as number) * x;
    const [own, exact] = [at(this.layer, last), this.exact()];
    const query = this.plane.points.at(-1) as Point;
    const past = Array.from({ length: 4 }, (_, i) => ({ kind: "past faint", f: line(at(depth, 1 + 2 * i)) }));
    const said = line(own)(query.x);
    const [x, y] = this.plane.place(query.x, Math.max(-1, Math.min(1, said)));
    this.plane.drawCurves([...past, { kind: "fit", f: line(own) }, { kind: "exact", f: line(exact) }], [svg("circle", { class: "dot", cx: x, cy: y, r: 5.5 })]);
    const final = at(depth, last);
    const guess = this.value(depth, last, this.labels.slots.guess as Slot, 0);
    const off = Math.abs(guess - line(exact)(query.x));
    const entry = (label: string, value: string): HTMLElement => html("div", {}, html("dt", {}, label), html("dd", {}, value));
    this.numbers.replaceChildren(entry("its prediction at point 5", guess.toFixed(12)), entry("off by", scientific(off)), entry("proved, for every input", atMost(this.labels.certificate.bound)));
    this.element.dataset.guess = String(guess);
    this.element.dataset.weights = JSON.stringify(final);
    this.refusal.textContent = Math.max(...final.map(Math.abs)) > 2 ? "A weight is above 2, which the program was compiled for: nothing is promised." : "";
  }

  private drawTable(lines: string[]): void {
    const names = Object.entries(this.labels.slots).filter(([, slot]) => slot.role !== "system");
    const written = new Set(lines.map((line) => /^\w+\s+(\S+) ←/.exec(line)?.[1] ?? ""));
    const tokens = Array.from({ length: this.labels.tokens - 1 }, (_, t) => t + 1);
    const title = (t: number): string => `${t % 2 === 1 ? "x" : "y"}${"₁₂₃₄₅"[Math.floor((t - 1) / 2)]}`;
    const head = html("tr", {}, html("th", {}), ...tokens.map((t) => html("th", { style: "text-align:center" }, title(t))));
    const rows = names.flatMap(([name, slot]) =>
      slot.labels.map((label, k) => html("tr", { class: written.has(name) ? "on" : "" }, html("th", {}, label), ...tokens.map((t) => {
        const value = this.value(this.layer, t, slot, k);
        const part = Math.min(1, Math.abs(value)) * 55;
        const shown = Math.abs(value) < 1e-12 ? "0" : short(Number(value.toPrecision(3)));
        return html("td", { class: written.has(name) ? "written" : "", title: String(value), style: `background:color-mix(in srgb, var(--${value < 0 ? "cold" : "hot"}) ${part.toFixed(0)}%, var(--card))` }, shown);
      }))));
    this.table.replaceChildren(html("table", { style: "border-collapse:separate;border-spacing:3px" }, html("thead", {}, head), html("tbody", {}, ...rows)));
  }

  private drawMaps(): void {
    const tokens = this.labels.tokens;
    const weights = this.pass?.attention[Math.max(0, this.layer - 1)] ?? [];
    this.maps.replaceChildren(...weights.map((head, h) => {
      const canvas = html("canvas", { style: "width:100%;image-rendering:pixelated;border-radius:6px;aspect-ratio:1", role: "img", "aria-label": `head ${h + 1}: who looks at whom` });
      paint(canvas, tokens, tokens, (r, c) => (head[r * tokens + c] as number) ** 0.6);
      return html("div", {}, canvas, html("p", { class: "note" }, `head ${h + 1}: what each token (a row) looks at (columns)`));
    }));
  }
}
