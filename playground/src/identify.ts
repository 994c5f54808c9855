// Scene 4: a small trained transformer answers in context; which algorithm answers like it?

import { button, html, linear, logarithmic, path, scientific, svg, tenTo } from "./draw";
import { ask } from "./decoder";
import { fetchBytes, readOnnx, type TensorFile } from "./files";
import type { Scene } from "./main";
import { Plane, type Point } from "./plane";

type Pairs = readonly [number, number][];
const HEADS = 4;
const MOST = 20;
const REACH = 2;
// Noise and prior of the task that it was trained on: σ²/τ² is the penalty of the best predictor there.
const PENALTY = 0.25;
const QUERIES = Array.from({ length: 41 }, (_, k) => REACH * (-1 + k / 20));
const LAST = 0.5;

const through = (w: number) => (x: number): number => w * x;
const products = (pairs: Pairs): number => pairs.reduce((sum, [x, y]) => sum + x * y, 0);
const squares = (pairs: Pairs): number => pairs.reduce((sum, [x]) => sum + x * x, 0);
const ALGORITHMS: { name: string; kind: string; fit: (pairs: Pairs) => (x: number) => number }[] = [
  { name: "ridge, λ = σ²/τ²", kind: "lines-3", fit: (pairs) => through(products(pairs) / (squares(pairs) + PENALTY)) },
  { name: "least squares", kind: "lines-2", fit: (pairs) => through(squares(pairs) > 0 ? products(pairs) / squares(pairs) : 0) },
  { name: "one gradient step", kind: "lines-4", fit: (pairs) => through((LAST * products(pairs)) / Math.max(1, pairs.length)) },
  {
    name: "3 nearest neighbours", kind: "lines-5",
    fit: (pairs) => (x) => {
      const near = [...pairs].sort((a, b) => Math.abs(a[0] - x) - Math.abs(b[0] - x)).slice(0, 3);
      return near.reduce((sum, [, y]) => sum + y, 0) / Math.max(1, near.length);
    },
  },
];
const START: [number, number][] = [[1.1, 0.9], [-0.7, -0.2], [0.4, 0.75], [-1.5, -1.3], [1.6, 0.8]];

export async function identify(): Promise<Scene> {
  return new Identify(readOnnx(await fetchBytes("data/learner.onnx")));
}

class Identify implements Scene {
  readonly element: HTMLElement;
  private readonly plane: Plane;
  private readonly bars = svg("svg", { viewBox: "0 0 420 190", role: "img", "aria-label": "how far the learner's answers are from each algorithm's" });
  private readonly nearest = html("p", { class: "note", id: "nearest", role: "status", style: "font-size:1rem;color:var(--ink)" });
  private readonly history = svg("svg", { viewBox: "0 0 420 170", role: "img", "aria-label": "the same distances after each number of points" });
  private line = 0.8;

  constructor(private readonly file: TensorFile) {
    this.plane = new Plane(MOST, () => this.redraw(), () => undefined);
    this.plane.least = 1;
    this.plane.use(START.map(([x, y]) => ({ x, y, label: 1 }) as Point), false, REACH, 2);
    const keys = html("p", { class: "legend" }, html("span", {}, html("i", { class: "fit-key" }), "the learner"),
      ...ALGORITHMS.map(({ name, kind }) => html("span", {}, html("i", { class: "swatch", style: `background:var(--${kind === "lines-3" ? "three" : kind === "lines-2" ? "two" : kind === "lines-4" ? "four" : "five"})` }), name)));
    this.element = html("div", {},
      html("h1", {}, "Which algorithm is it?"),
      html("p", { class: "lead" }, "This small GPT-2-style transformer was ", html("strong", {}, "trained"), ", on noisy lines through the origin, and never told how to fit one. Give it points; it answers at every x. Whose answers are nearest to its own?"),
      html("div", { class: "stage" },
        html("section", { class: "card" }, keys, this.plane.element,
          html("div", { class: "controls" }, button("a point from its task", () => this.draw(1), { class: "main" }), button("five", () => this.draw(5)), button("another line", () => this.again()), button("off the line", () => this.outlier()))),
        html("div", { class: "side" },
          html("section", { class: "card" }, html("h2", {}, "Mean squared distance of the answers"), this.bars, this.nearest),
          html("section", { class: "card" }, html("h2", {}, "The same, as points were added"), this.history))));
  }

  private gaussian(): number {
    return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  }

  private draw(count: number): void {
    const clip = (value: number): number => Math.round(Math.max(-2, Math.min(2, value)) * 1000) / 1000;
    for (let k = 0; k < count && this.plane.points.length < MOST; k++) {
      const x = this.gaussian();
      this.plane.points.push({ x: clip(x), y: clip(this.line * clip(x) + 0.5 * this.gaussian()), label: 1 });
    }
    this.use();
  }

  private again(): void {
    this.line = this.gaussian();
    this.plane.points.length = 0;
    this.draw(3);
  }

  private outlier(): void {
    if (this.plane.points.length < MOST) this.plane.points.push({ x: 1.5, y: this.line > 0 ? -1.8 : 1.8, label: 1 });
    this.use();
  }

  private use(): void {
    this.plane.use(this.plane.points, false, REACH, 2);
    this.redraw();
  }

  // What the learner says at every query after all points, and how far each algorithm is from it after 1, 2, … of them.
  private answers(pairs: Pairs): { said: number[]; off: number[][] } {
    const counts = pairs.map((_, k) => k + 1);
    // Fewer queries for the past: it is there to be compared, not read.
    const asked = counts.map((after) => QUERIES.filter((_, k) => after === pairs.length || k % 4 === 0).map((x) => ({ x, after })));
    const said = ask(this.file, pairs, asked.flat(), HEADS);
    let start = 0;
    const off = asked.map((questions, n) => {
      const own = said.slice(start, (start += questions.length));
      const seen = pairs.slice(0, n + 1);
      return ALGORITHMS.map(({ fit }) => {
        const f = fit(seen);
        return questions.reduce((sum, { x }, k) => sum + (f(x) - (own[k] as number)) ** 2, 0) / questions.length;
      });
    });
    return { said: said.slice(-QUERIES.length), off };
  }

  show(words: string[]): void {
    const made = (words[0] ?? "").split(";").map((each) => each.split(",").map(Number)).filter(([x, y]) => Math.abs(x as number) <= 2 && Math.abs(y as number) <= 2);
    if (made.length > 0) this.plane.points = made.slice(0, MOST).map(([x, y]) => ({ x, y, label: 1 }) as Point);
    this.use();
  }

  redraw(): void {
    const pairs = this.plane.points.map(({ x, y }): [number, number] => [x, y]);
    const { said, off } = this.answers(pairs);
    const now = off.at(-1) as number[];
    const learned = (x: number): number => {
      const at = Math.max(0, Math.min(QUERIES.length - 2, Math.floor(((x / REACH + 1) / 2) * (QUERIES.length - 1))));
      const [a, b] = [said[at] as number, said[at + 1] as number];
      return a + ((x - (QUERIES[at] as number)) / ((QUERIES[at + 1] as number) - (QUERIES[at] as number))) * (b - a);
    };
    this.plane.drawCurves([...ALGORITHMS.map(({ kind, fit }) => ({ kind: `curve ${kind}`, f: fit(pairs) })), { kind: "fit", f: learned }]);
    this.drawBars(now);
    this.drawHistory(off);
    this.element.dataset.said = JSON.stringify(said);
    this.element.dataset.off = JSON.stringify(now);
  }

  private drawBars(off: number[]): void {
    const x = logarithmic([1e-4, 10], [0, 400]);
    const least = off.indexOf(Math.min(...off));
    const parts: SVGElement[] = [];
    for (const power of [-3, -2, -1, 0]) {
      parts.push(svg("line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: 4, y2: 168 }), svg("text", { x: x(10 ** power), y: 182, "text-anchor": "middle" }, power === 0 ? "1" : tenTo(power)));
    }
    off.forEach((value, k) => {
      const y = 8 + 40 * k;
      const { name, kind } = ALGORITHMS[k] as (typeof ALGORITHMS)[0];
      parts.push(svg("text", { x: 0, y: y + 10, style: k === least ? "fill:var(--ink);font-weight:600" : "" }, `${name}: ${scientific(value)}`),
        svg("line", { class: kind, x1: 0, x2: Math.max(2, x(value)), y1: y + 21, y2: y + 21, "stroke-width": 9, "stroke-linecap": "round", opacity: k === least ? 1 : 0.55 }));
    });
    this.bars.replaceChildren(...parts);
    const { name } = ALGORITHMS[least] as (typeof ALGORITHMS)[0];
    this.nearest.textContent = `Nearest after ${this.plane.points.length} point${this.plane.points.length === 1 ? "" : "s"}: ${name}.`;
  }

  private drawHistory(all: number[][]): void {
    const x = linear([1, Math.max(2, all.length)], [34, 406]);
    const y = logarithmic([1e-4, 10], [146, 6]);
    const parts: SVGElement[] = [];
    for (const power of [-4, -2, 0]) {
      parts.push(svg("line", { class: "grid", x1: 34, x2: 410, y1: y(10 ** power), y2: y(10 ** power) }), svg("text", { x: 30, y: y(10 ** power) + 4, "text-anchor": "end" }, power === 0 ? "1" : tenTo(power)));
    }
    ALGORITHMS.forEach(({ kind }, k) => parts.push(svg("path", { class: `curve ${kind}`, d: path(all.map((off, n) => [x(n + 1), y(off[k] as number)])) })));
    parts.push(svg("text", { x: 406, y: 163, "text-anchor": "end" }, `points: 1 to ${all.length}`));
    this.history.replaceChildren(...parts);
  }
}
