// Scene 3: one softmax over a few keys acts as a function of the number it is asked.

import { atMost, choice, html, linear, logarithmic, path, scientific, short, svg, tenTo } from "./draw";
import { fetchBytes, readSafetensors, tensor, type TensorFile } from "./files";
import { softmax } from "./interpreter";
import type { Scene } from "./main";

interface Way {
  grid: string;
  bound: number;
  way: string;
}

interface Known {
  function: string;
  keys: number;
  auto: Way;
  paper: Way;
}

const FUNCTIONS: Record<string, (s: number) => number> = {
  s: (s) => s,
  "sin 10s": (s) => Math.sin(10 * s),
  "s²": (s) => s * s,
  "eˢ": Math.exp,
  "1/(1 + 25s²)": (s) => 1 / (1 + 25 * s * s),
  "max(s, 0)": (s) => Math.max(s, 0),
  "soft threshold": (s) => Math.sign(s) * Math.max(Math.abs(s) - 0.3, 0),
};
const BOX = { width: 640, height: 316, left: 48, right: 10, top: 12, bottom: 40 };
const SAMPLES = Array.from({ length: 401 }, (_, k) => -1 + k / 200);

export async function softmaxes(): Promise<Scene> {
  return new Softmaxes(readSafetensors(await fetchBytes("data/softmax.safetensors")));
}

class Softmaxes implements Scene {
  readonly element: HTMLElement;
  private readonly known: Known[];
  private name = "sin 10s";
  private keys = 17;
  private way: "auto" | "paper" = "auto";
  private s = 0.35;
  private readonly picture = svg("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, class: "plane", role: "img", "aria-label": "the function and the softmax; move the pointer to ask at another place" });
  private readonly bars = svg("svg", { viewBox: "0 0 404 190", role: "img", "aria-label": "keys: weights and values at the pointer" });
  private readonly errors = svg("svg", { viewBox: "0 0 480 290", role: "img", "aria-label": "error over the interval, with its proved bound" });
  private readonly colours = html("p", { class: "note" });
  private readonly numbers = html("dl", { class: "numbers" });
  private readonly slider: HTMLInputElement;
  private readonly asked: HTMLInputElement;
  private readonly count = html("output");

  constructor(private readonly file: TensorFile) {
    this.known = JSON.parse(file.facts.get("emulon") ?? "[]") as Known[];
    const sizes = [...new Set(this.known.map(({ keys }) => keys))].sort((a, b) => a - b);
    this.slider = html("input", { type: "range", min: 0, max: sizes.length - 1, value: sizes.indexOf(this.keys), "aria-label": "number of keys", id: "keys", input: () => {
      this.keys = sizes[Number(this.slider.value)] as number;
      this.redraw();
    } });
    this.asked = html("input", { type: "range", min: -1, max: 1, step: 0.005, value: this.s, "aria-label": "where to ask", input: () => {
      this.s = Number(this.asked.value);
      this.redraw();
    } });
    const follow = (event: PointerEvent): void => {
      const box = this.picture.getBoundingClientRect();
      const u = ((event.clientX - box.left) / box.width) * BOX.width;
      this.s = Math.max(-1, Math.min(1, linear([BOX.left, BOX.width - BOX.right], [-1, 1])(u)));
      this.asked.value = String(this.s);
      this.redraw();
    };
    this.picture.addEventListener("pointermove", follow);
    this.picture.addEventListener("pointerdown", follow);
    const functions = choice("function", "function", Object.keys(FUNCTIONS).map((value) => ({ value, label: value })), this.name, (value) => {
      this.name = value;
      this.redraw();
    });
    const ways = choice("grid", "way", [{ value: "auto", label: "ours" }, { value: "paper", label: "the paper's" }], this.way, (value) => {
      this.way = value as "auto" | "paper";
      this.redraw();
    });
    this.element = html("div", {},
      html("h1", {}, "A softmax that is a function"),
      html("p", { class: "lead" }, "Keys score ", html("code", {}, "slope·s + intercept"), "; softmax weighs their values. Sharpened, it picks the nearest value, and the error falls like 1/keys. ",
        html("strong", {}, "Softened"), ", with values to match, it falls exponentially."),
      html("div", { class: "stage" },
        html("div", { class: "side" },
          html("section", { class: "card" }, functions, ways, html("div", { class: "controls", style: "margin-top:4px" }, html("span", { class: "note", style: "margin:0" }, "keys"), html("span", { class: "grow" }, this.slider), this.count)),
          html("section", { class: "card" },
            html("p", { class: "legend" }, html("span", {}, html("i", { class: "fit-key" }), "the softmax"), html("span", {}, html("i", {}), "the function")),
            this.picture, html("div", { class: "controls" }, html("span", { class: "note", style: "margin:0" }, "ask at"), html("span", { class: "grow" }, this.asked)), this.numbers)),
        html("div", { class: "side" },
          html("section", { class: "card" }, html("h2", {}, "Keys: how much they weigh here, what they say"), this.bars),
          html("section", { class: "card" }, html("h2", {}, "Error over the interval, and what is proved of it"), this.errors, this.colours))));
  }

  show(words: string[]): void {
    const name = words.join("/"); // one of them has a stroke in it
    if (name in FUNCTIONS) this.name = name;
    for (const input of this.element.querySelectorAll<HTMLInputElement>("input[name=function]")) input.checked = input.value === this.name;
    this.redraw();
  }

  private grid(way: "auto" | "paper"): { keys: number; weights: (s: number) => Float64Array; values: Float64Array; bound: number } {
    const found = this.known.find((each) => each.function === this.name && each.keys === this.keys) as Known;
    const { values } = tensor(this.file, found[way].grid);
    const keys = values.length / 3;
    const weights = (s: number): Float64Array => {
      const scores = Float64Array.from({ length: keys }, (_, r) => (values[r] as number) * s + (values[keys + r] as number));
      softmax(scores);
      return scores;
    };
    return { keys, weights, values: values.subarray(2 * keys), bound: found[way].bound };
  }

  redraw(): void {
    const f = FUNCTIONS[this.name] as (s: number) => number;
    const grid = this.grid(this.way);
    const mean = (of: typeof grid) => (s: number): number => of.weights(s).reduce((sum, weight, r) => sum + weight * (of.values[r] as number), 0);
    const F = mean(grid);
    this.count.textContent = `${grid.keys} keys`;
    this.drawPicture(f, F);
    this.drawBars(grid);
    const other = this.grid(this.way === "auto" ? "paper" : "auto");
    this.drawErrors(f, F, grid.bound, mean(other), other.bound);
    const entry = (label: string, value: string): HTMLElement => html("div", {}, html("dt", {}, label), html("dd", {}, value));
    this.numbers.replaceChildren(entry("s", short(this.s)), entry("the softmax says", F(this.s).toFixed(12)), entry("off by", scientific(Math.abs(F(this.s) - f(this.s)))),
      entry("proved, everywhere", atMost(grid.bound)));
  }

  private drawPicture(f: (s: number) => number, F: (s: number) => number): void {
    const heights = SAMPLES.map(f);
    const [low, high] = [Math.min(...heights), Math.max(...heights)];
    const room = 0.15 * (high - low);
    const x = linear([-1, 1], [BOX.left, BOX.width - BOX.right]);
    const y = linear([low - room, high + room], [BOX.height - BOX.bottom, BOX.top]);
    const parts: SVGElement[] = [svg("rect", { class: "back", width: BOX.width, height: BOX.height })];
    for (const tick of [-1, -0.5, 0, 0.5, 1]) {
      parts.push(svg("line", { class: tick === 0 ? "axis" : "grid", x1: x(tick), x2: x(tick), y1: BOX.top, y2: BOX.height - BOX.bottom }), svg("text", { x: x(tick), y: BOX.height - 22, "text-anchor": "middle" }, String(tick)));
    }
    for (const tick of [low, (low + high) / 2, high]) {
      parts.push(svg("line", { class: "grid", x1: x(-1), x2: x(1), y1: y(tick), y2: y(tick) }), svg("text", { x: BOX.left - 6, y: y(tick) + 4, "text-anchor": "end" }, String(Number(tick.toFixed(2)))));
    }
    parts.push(svg("path", { class: "fit", d: path(SAMPLES.map((s) => [x(s), y(F(s))])) }), svg("path", { class: "exact", d: path(SAMPLES.map((s) => [x(s), y(f(s))])) }),
      svg("line", { class: "now", x1: x(this.s), x2: x(this.s), y1: BOX.top, y2: BOX.height - BOX.bottom }), svg("circle", { class: "dot", cx: x(this.s), cy: y(F(this.s)), r: 5.5 }));
    this.picture.replaceChildren(...parts, ...named(BOX.width / 2, BOX.height - 4, "s, what the softmax is asked", 13, "value"));
  }

  private drawBars(grid: { keys: number; weights: (s: number) => Float64Array; values: Float64Array }): void {
    const weights = grid.weights(this.s);
    const step = 400 / grid.keys;
    const tallest = Math.max(...weights);
    const size = Math.max(1e-12, ...grid.values.map(Math.abs));
    const y = linear([-size, size], [182, 102]);
    const parts: SVGElement[] = [svg("text", { x: 0, y: 10 }, "weight"), svg("text", { x: 0, y: 100 }, `value (up to ${short(size)})`),
      svg("line", { class: "grid", x1: 0, x2: 400, y1: 84, y2: 84 }), svg("line", { class: "grid", x1: 0, x2: 400, y1: y(0), y2: y(0) })];
    weights.forEach((weight, r) => {
      const height = 68 * (weight / tallest);
      parts.push(svg("rect", { class: "bar", x: r * step + 1, width: Math.max(1.5, step - 2), y: 84 - height, height, rx: 1.5 }, svg("title", {}, `key ${r + 1}: ${scientific(weight)}`)),
        svg("circle", { class: "dot", cx: (r + 0.5) * step, cy: y(grid.values[r] as number), r: Math.max(1.8, Math.min(4, step / 4)), opacity: 0.25 + 0.75 * Math.sqrt(weight / tallest) }));
    });
    this.bars.replaceChildren(...parts);
  }

  private drawErrors(f: (s: number) => number, F: (s: number) => number, bound: number, other: (s: number) => number, beside: number): void {
    const x = linear([-1, 1], [66, 474]);
    const y = logarithmic([1e-17, 10], [264, 8]);
    const parts: SVGElement[] = [];
    for (const power of [-16, -12, -8, -4, 0]) {
      parts.push(svg("line", { class: "grid", x1: x(-1), x2: x(1), y1: y(10 ** power), y2: y(10 ** power) }), svg("text", { x: 62, y: y(10 ** power) + 4, "text-anchor": "end" }, power === 0 ? "1" : tenTo(power)));
    }
    const curve = (kind: string, g: (s: number) => number, b: number): SVGElement[] => [
      svg("path", { class: `curve ${kind}`, d: path(SAMPLES.filter((_, k) => k % 2 === 0).map((s) => [x(s), y(Math.abs(g(s) - f(s)))])) }),
      svg("line", { class: `bound ${kind}`, x1: x(-1), x2: x(1), y1: y(b), y2: y(b) })];
    const names = this.way === "auto" ? ["ours", "the paper's"] : ["the paper's", "ours"];
    parts.push(...curve("lines-2", other, beside), ...curve("lines-1", F, bound), svg("line", { class: "now", x1: x(this.s), x2: x(this.s), y1: 8, y2: 264 }),
      ...named(270, 284, "s, from −1 to 1", 8, "error"));
    this.errors.replaceChildren(...parts);
    this.colours.textContent = `Green: ${names[0]}; orange: ${names[1]}; dashed: proved.`;
  }
}

// What the axes of a picture are called: across at (x, y), upwards at x = left.
function named(x: number, y: number, across: string, left: number, up: string): SVGElement[] {
  return [svg("text", { class: "axis-name", x, y, "text-anchor": "middle" }, across),
    svg("text", { class: "axis-name", transform: `translate(${left} ${y / 2}) rotate(-90)`, "text-anchor": "middle" }, up)];
}
