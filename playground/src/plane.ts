// Points that can be dragged, added and removed, and what was fitted to them.

import { html, linear, path, type Scale, svg } from "./draw";

export interface Point {
  x: number;
  y: number;
  label: -1 | 1;
}

export interface Curve {
  readonly kind: string;
  readonly f: (x: number) => number;
}

export interface Fit {
  // The prediction at x, or for two classes the score at (x, y); null where there is nothing to draw.
  readonly own: (x: number, y: number) => number;
  readonly exact: (x: number, y: number) => number;
  readonly past: ((x: number, y: number) => number)[];
  // What a run of emulon's fitted, where the points are of one; and another algorithm's.
  readonly ran: ((x: number, y: number) => number) | null;
  readonly beside: ((x: number, y: number) => number) | null;
}

const WIDTH = 640;
const HEIGHT = 400;
const PAD = { left: 46, right: 10, top: 8, bottom: 40 };
const MOVES: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export class Plane {
  readonly element: SVGSVGElement;
  points: Point[] = [];
  classes = false;
  adding: -1 | 1 = 1;
  // Where points may be: |x| and |y| up to these; `numbered` where their order matters.
  private wide = 1;
  private reach = 2;
  numbered = false;
  private readonly name = `clip-${Math.random().toString(36).slice(2)}`;
  least = 2;
  private readonly ground = svg("g");
  private readonly lines = svg("g", { "pointer-events": "none" });
  private readonly marks = svg("g");
  private x: Scale = linear([-1, 1], [PAD.left, WIDTH - PAD.right]);
  private y: Scale = linear([-2, 2], [HEIGHT - PAD.bottom, PAD.top]);

  constructor(private readonly limit: number, private readonly changed: () => void, private readonly picked: (i: number) => void) {
    this.element = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plane", role: "group",
      "aria-label": "points: drag them, click to add one; with the keyboard, tab to a point and use the arrow keys",
      pointerdown: (event: PointerEvent) => this.down(event),
    }, this.ground, this.lines, this.marks);
  }

  use(points: Point[], classes: boolean, wide = 1, reach = classes ? 1 : 2): void {
    this.points = points;
    this.classes = classes;
    [this.wide, this.reach] = [wide, reach];
    this.x = linear([-wide, wide], [PAD.left, WIDTH - PAD.right]);
    this.y = linear([-this.reach, this.reach], [HEIGHT - PAD.bottom, PAD.top]);
    this.drawGround();
    this.drawPoints();
  }

  private drawGround(): void {
    const parts: SVGElement[] = [svg("rect", { class: "back", width: WIDTH, height: HEIGHT })];
    for (let k = -2; k <= 2; k++) {
      const [u, v] = [(k / 2) * this.wide, (k / 2) * this.reach];
      const kind = k === 0 ? "axis" : "grid";
      parts.push(
        svg("line", { class: kind, x1: this.x(u), x2: this.x(u), y1: this.y(-this.reach), y2: this.y(this.reach) }),
        svg("line", { class: kind, x1: this.x(-this.wide), x2: this.x(this.wide), y1: this.y(v), y2: this.y(v) }),
        svg("text", { x: this.x(u), y: HEIGHT - PAD.bottom + 16, "text-anchor": "middle" }, String(u)),
        svg("text", { x: PAD.left - 6, y: this.y(v) + 4, "text-anchor": "end" }, String(v)),
      );
    }
    const middle = (HEIGHT - PAD.bottom + PAD.top) / 2;
    parts.push(svg("text", { class: "axis-name", x: (WIDTH + PAD.left) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, this.classes ? "feature x₁" : "feature x"),
      svg("text", { class: "axis-name", transform: `translate(13 ${middle}) rotate(-90)`, "text-anchor": "middle" }, this.classes ? "feature x₂" : "target y"));
    this.ground.replaceChildren(...parts);
  }

  private drawPoints(): void {
    const marks = this.points.map((point, i) => {
      const kind = this.classes ? (point.label > 0 ? "a" : "b") : "";
      const common = {
        class: `point ${kind}`, tabindex: 0, role: "button", "data-point": i,
        "aria-label": `point ${i + 1} of ${this.points.length}${this.classes ? `, class ${kind}` : ""}: ${point.x.toFixed(2)}, ${point.y.toFixed(2)}`,
        keydown: (event: KeyboardEvent) => this.key(event, i),
        focus: () => this.picked(i), pointerenter: () => this.picked(i),
      };
      const [x, y] = [this.x(point.x), this.y(point.y)];
      return this.classes && point.label < 0
        ? svg("rect", { ...common, x: x - 7, y: y - 7, width: 14, height: 14, rx: 2, transform: `rotate(45 ${x} ${y})` })
        : svg("circle", { ...common, cx: x, cy: y, r: this.numbered ? 11 : 7.5 });
    });
    const numbers = !this.numbered ? [] : this.points.map((point, i) =>
      svg("text", { x: this.x(point.x), y: this.y(point.y) + 4, "text-anchor": "middle", "pointer-events": "none", class: "numeral" }, String(i + 1)));
    this.marks.replaceChildren(...marks, ...numbers);
  }

  private at(event: PointerEvent): [number, number] {
    const box = this.element.getBoundingClientRect();
    const [u, v] = [((event.clientX - box.left) / box.width) * WIDTH, ((event.clientY - box.top) / box.height) * HEIGHT];
    const x = linear([PAD.left, WIDTH - PAD.right], [-this.wide, this.wide])(u);
    const y = linear([HEIGHT - PAD.bottom, PAD.top], [-this.reach, this.reach])(v);
    return this.inside(x, y);
  }

  private inside(x: number, y: number): [number, number] {
    const clip = (value: number, reach: number): number => Math.round(Math.max(-reach, Math.min(reach, value)) * 1000) / 1000;
    return [clip(x, this.wide), clip(y, this.reach)];
  }

  private down(event: PointerEvent): void {
    if (event.button !== 0) return;
    const hit = (event.target as Element).getAttribute("data-point");
    let index = hit === null ? this.nearest(event) : Number(hit);
    if (index < 0) {
      if (this.points.length >= this.limit) return;
      const [x, y] = this.at(event);
      index = this.points.push({ x, y, label: this.adding }) - 1;
      this.drawPoints();
      this.changed();
    }
    event.preventDefault();
    (this.marks.children[index] as SVGElement | undefined)?.focus({ preventScroll: true });
    this.element.setPointerCapture(event.pointerId);
    let waiting = false;
    const move = (next: PointerEvent): void => {
      const point = this.points[index];
      if (point === undefined) return;
      [point.x, point.y] = this.at(next);
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        this.moveMark(index);
        this.changed();
      });
    };
    const up = (): void => {
      this.element.removeEventListener("pointermove", move);
      this.element.removeEventListener("pointerup", up);
      this.element.removeEventListener("pointercancel", up);
    };
    this.element.addEventListener("pointermove", move);
    this.element.addEventListener("pointerup", up);
    this.element.addEventListener("pointercancel", up);
  }

  // Fingers are wider than points.
  private nearest(event: PointerEvent): number {
    const box = this.element.getBoundingClientRect();
    const reach = event.pointerType === "mouse" ? 10 : 22;
    return this.points.findIndex(({ x, y }) => {
      const [dx, dy] = [(this.x(x) / WIDTH) * box.width + box.left - event.clientX, (this.y(y) / HEIGHT) * box.height + box.top - event.clientY];
      return Math.hypot(dx, dy) < reach;
    });
  }

  private moveMark(i: number): void {
    const focused = document.activeElement === this.marks.children[i];
    this.drawPoints();
    if (focused) (this.marks.children[i] as SVGElement).focus({ preventScroll: true });
  }

  private key(event: KeyboardEvent, i: number): void {
    const point = this.points[i];
    const move = MOVES[event.key];
    if (point === undefined) return;
    if (move !== undefined) {
      const size = event.shiftKey ? 0.2 : 0.05;
      [point.x, point.y] = this.inside(point.x + move[0] * size * this.wide, point.y + move[1] * size * this.reach);
      this.moveMark(i);
    } else if ((event.key === "Delete" || event.key === "Backspace") && this.points.length > this.least) {
      this.remove(i);
    } else if (event.key === "c" && this.classes) {
      point.label = point.label > 0 ? -1 : 1;
      this.moveMark(i);
    } else return;
    event.preventDefault();
    event.stopPropagation();
    this.changed();
  }

  remove(i: number): void {
    this.points.splice(i, 1);
    this.drawPoints();
    (this.marks.children[Math.min(i, this.points.length - 1)] as SVGElement | undefined)?.focus({ preventScroll: true });
  }

  highlight(i: number): void {
    Array.from(this.marks.children).slice(0, this.points.length).forEach((mark, k) => mark.classList.toggle("asked", k === i));
  }

  drawFit(fit: Fit | null): void {
    if (fit === null) return this.lines.replaceChildren();
    this.lines.replaceChildren(...(this.classes ? this.boundaries(fit) : this.curves(fit)));
  }

  // Any curves over x, each with its own class.
  drawCurves(curves: Curve[], more: SVGElement[] = []): void {
    const xs = Array.from({ length: 61 }, (_, k) => this.wide * (-1 + k / 30));
    const far = 3 * this.reach;
    const parts = curves.map(({ kind, f }) => svg("path", { class: kind, d: path(xs.map((x) => [this.x(x), this.y(Math.max(-far, Math.min(far, f(x))))])) }));
    this.lines.replaceChildren(this.clip(), svg("g", { "clip-path": `url(#${this.name})` }, ...parts), ...more);
  }

  place(x: number, y: number): [number, number] {
    return [this.x(x), this.y(y)];
  }

  private curves(fit: Fit): SVGElement[] {
    const xs = Array.from({ length: 61 }, (_, k) => this.wide * (-1 + k / 30));
    const far = 3 * this.reach;
    const curve = (f: (x: number, y: number) => number): string =>
      path(xs.map((x) => [this.x(x), this.y(Math.max(-far, Math.min(far, f(x, 0))))]));
    const residuals = this.points.map(({ x, y }) =>
      svg("line", { class: "residual", x1: this.x(x), x2: this.x(x), y1: this.y(y), y2: this.y(Math.max(-far, Math.min(far, fit.own(x, 0)))) }),
    );
    return [this.clip(), svg("g", { "clip-path": `url(#${this.name})` }, ...this.pastLines(fit, curve), ...residuals,
      ...(fit.ran === null ? [] : [svg("path", { class: "ran", d: curve(fit.ran) })]), ...(fit.beside === null ? [] : [svg("path", { class: "fit beside", d: curve(fit.beside) })]),
      svg("path", { class: "fit", d: curve(fit.own) }), svg("path", { class: "exact", d: curve(fit.exact) }))];
  }

  private pastLines(fit: Fit, curve: (f: (x: number, y: number) => number) => string): SVGElement[] {
    return fit.past.map((f, k) => svg("path", { class: "past", d: curve(f), opacity: 0.08 + (0.22 * k) / Math.max(1, fit.past.length) }));
  }

  private clip(): SVGElement {
    const box = { x: this.x(-this.wide), y: this.y(this.reach), width: this.x(this.wide) - this.x(-this.wide), height: this.y(-this.reach) - this.y(this.reach) };
    return svg("clipPath", { id: this.name }, svg("rect", box));
  }

  // Where an affine score is zero: from its values at three corners.
  private boundaries(fit: Fit): SVGElement[] {
    const line = (f: (x: number, y: number) => number): string => {
      const c = f(0, 0);
      const [a, b] = [f(1, 0) - c, f(0, 1) - c];
      const size = a * a + b * b;
      if (!(size > 0)) return "";
      const [fx, fy] = [(-c * a) / size, (-c * b) / size];
      const far = 6 / Math.sqrt(size);
      return path([[this.x(fx - b * far), this.y(fy + a * far)], [this.x(fx + b * far), this.y(fy - a * far)]]);
    };
    const half = (f: (x: number, y: number) => number, side: 1 | -1): string => {
      const c = f(0, 0);
      const [a, b] = [f(1, 0) - c, f(0, 1) - c];
      const size = a * a + b * b;
      if (!(size > 0)) return "";
      const [fx, fy] = [(-c * a) / size, (-c * b) / size];
      const far = 6 / Math.sqrt(size);
      const corners: [number, number][] = [[fx - b * far, fy + a * far], [fx + b * far, fy - a * far]];
      const push = (side * 8) / Math.sqrt(size);
      corners.push([fx + b * far + a * push, fy - a * far + b * push], [fx - b * far + a * push, fy + a * far + b * push]);
      return `${path(corners.map(([x, y]) => [this.x(x), this.y(y)]))}Z`;
    };
    return [this.clip(), svg("g", { "clip-path": `url(#${this.name})` },
      svg("path", { class: "side-a", d: half(fit.own, 1) }), svg("path", { class: "side-b", d: half(fit.own, -1) }),
      ...(fit.ran === null ? [] : [svg("path", { class: "ran", d: line(fit.ran) })]), ...(fit.beside === null ? [] : [svg("path", { class: "fit beside", d: line(fit.beside) })]),
      ...this.pastLines(fit, line), svg("path", { class: "fit", d: line(fit.own) }), svg("path", { class: "exact", d: line(fit.exact) }))];
  }
}

// What the lines are called; `beside` is another algorithm's.
export function legend(own: string, exact: string, beside = ""): HTMLElement {
  return html("p", { class: "legend" },
    html("span", {}, html("i", { class: "fit-key" }), own),
    beside === "" ? "" : html("span", {}, html("i", { class: "fit-key beside" }), beside),
    html("span", {}, html("i", {}), exact));
}
