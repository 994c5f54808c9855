// Scene 1: points to drag, a prompt to choose, and one frozen transformer that does what the prompt says.

import { atMost, button, choice, digits, html, icon, linear, logarithmic, path, scientific, still, svg, tenTo } from "./draw";
import { fetchBytes, readOnnx, readSafetensors } from "./files";
import { Inside, type Other } from "./inside";
import { Interpreter } from "./interpreter";
import type { Scene } from "./main";
import { legend, Plane, type Point } from "./plane";
import { type Facts, Program, type Trace } from "./program";
import { Run } from "./run";
import { Bend } from "./bend";

const LINE: Point[] = [
  [-0.92, -0.78], [-0.74, -0.95], [-0.55, -0.3], [-0.38, -0.42], [-0.2, 0.28], [-0.02, 0.1], [0.17, 0.62], [0.33, 0.4],
  [0.52, 0.98], [0.7, -1.45], [0.84, 1.22],
].map(([x, y]) => ({ x, y, label: 1 }) as Point);
const BLOBS: Point[] = [
  [-0.72, 0.1, -1], [-0.55, -0.42, -1], [-0.4, 0.34, -1], [-0.3, -0.65, -1], [-0.12, -0.2, -1], [0.1, -0.55, -1], [-0.62, -0.75, -1],
  [0.18, 0.38, 1], [0.35, -0.08, 1], [0.5, 0.55, 1], [0.66, 0.16, 1], [0.8, 0.72, 1], [-0.08, 0.72, 1], [0.42, 0.86, 1],
].map(([x, y, label]) => ({ x, y, label }) as Point);
const COUNTS: Point[] = [
  [-0.9, 0.2], [-0.7, 0.1], [-0.45, 0.35], [-0.2, 0.3], [0, 0.55], [0.2, 0.5], [0.45, 0.95], [0.65, 1.15], [0.8, 1.4], [0.92, 1.85],
].map(([x, y]) => ({ x, y, label: 1 }) as Point);
const KINDS = { residual: LINE, rate: COUNTS, margin: BLOBS };
const SMALLEST = 1e-17;

export async function algorithms(): Promise<Scene> {
  const [model, list] = await Promise.all([fetchBytes("data/interpreter.onnx"), fetchBytes("data/programs.json")]);
  const facts = JSON.parse(new TextDecoder().decode(list)) as Facts[];
  const programs = await Promise.all(
    facts.map(async (each) => new Program(each, readSafetensors(await fetchBytes(`data/${each.name}.safetensors`)))),
  );
  const file = readOnnx(model);
  const interpreter = new Interpreter(file);
  return new Algorithms(interpreter, new Map(programs.map((each) => [each.facts.name, each])), await interpreter.sha256());
}

class Algorithms implements Scene {
  readonly element: HTMLElement;
  private program: Program;
  private run: Run;
  // Another algorithm on the same points, through the same weights: the one chosen before, or one picked.
  private other: Program | null = null;
  private otherRun: Run | null = null;
  private step = 60;
  private playing = false;
  private readonly points = new Map<string, Point[]>(Object.entries(KINDS).map(([kind, points]) => [kind, structuredClone(points)]));
  private readonly plane: Plane;
  private readonly inside: Inside;
  private readonly bend: Bend;
  private phase = 0;
  // The run that the points are of: what it fitted to them, and what it is called.
  private ran: { link: string; weights: number[]; title: string } | null = null;
  private readonly origin = html("p", { class: "note", id: "origin", hidden: true });
  private readonly sha = html("span", { class: "chip", id: "sha256" });
  private readonly says = html("p", { class: "says" });
  private readonly places = html("span", { class: "note places", role: "status" });
  private readonly keys = html("div", { class: "keys" });
  private readonly besides = html("select", { id: "beside", "aria-label": "another algorithm beside it", change: () => {
    this.other = this.programs.get(this.besides.value) ?? null;
    this.restart(false);
  } });
  private readonly weights = html("div", { class: "scroll weights", id: "weights", "aria-live": "off" });
  private readonly error = html("dd", { id: "error" });
  private readonly bound = html("dd", { id: "bound" });
  private readonly chart = svg("svg", { class: "chart", viewBox: "0 0 420 150", role: "img", "aria-label": "error and bound over the steps" });
  private readonly slider: HTMLInputElement;
  private readonly count = html("output", { id: "step" });
  private readonly player: HTMLButtonElement;
  private readonly refusal = html("p", { class: "note warn", role: "status" });
  private readonly labels: HTMLFieldSetElement;
  private readonly phases = html("div");
  private readonly prompts: HTMLElement;

  constructor(private readonly interpreter: Interpreter, private readonly programs: Map<string, Program>, private readonly frozen: string) {
    this.program = (programs.get("huber") ?? programs.values().next().value) as Program;
    this.plane = new Plane(this.program.facts.domain.points, () => this.restart(), (i) => this.ask(i));
    this.inside = new Inside(interpreter, (key) => this.bend.choose("values", key),
      html("label", { class: "controls note" }, "beside it", html("span", { class: "grow" }, this.besides)), this.says);
    this.bend = new Bend(interpreter, () => this.weightsChanged());
    this.slider = html("input", { type: "range", min: 0, max: this.program.facts.steps, "aria-label": "step", input: () => this.go(Number(this.slider.value)) });
    this.player = button("play", () => this.play(!this.playing), { class: "main" });
    this.labels = choice("a click adds", "label", [{ value: "1", label: "● one class" }, { value: "-1", label: "◆ the other" }], "1",
      (value) => { this.plane.adding = value === "1" ? 1 : -1; });
    this.prompts = html("div");
    this.player.prepend(icon("play"));
    this.element = this.page();
    this.run = new Run(this.program, interpreter, this.rows());
    this.choose(this.program.facts.name, false);
  }

  private page(): HTMLElement {
    const controls = html("div", { class: "controls" },
      button(icon("rewind"), () => this.go(0), { "aria-label": "rewind" }), button(icon("back"), () => this.go(this.step - 1), { "aria-label": "one step back", class: "single" }),
      this.player, button(icon("next"), () => this.go(this.step + 1), { "aria-label": "one step", class: "single" }),
      html("span", { class: "grow" }, this.slider), this.count);
    const more = html("div", { class: "controls more" },
      button("add a point", () => this.addPoint()), button("new points", () => this.shuffle()), button("as they were", () => this.original()), this.labels,
      html("label", { class: "note" }, "your own run (playground.json of ", html("code", {}, "emulon run"), "’s report) ",
        html("input", { type: "file", accept: ".json,application/json", id: "own-run", "aria-label": "a run of your own", change: (event: Event) => void this.openRun(event.target as HTMLInputElement) })),
      this.places);
    const plot = html("section", { class: "card plot", keydown: (event: KeyboardEvent) => this.key(event) }, this.keys, this.plane.element, controls, this.origin, this.refusal);
    const numbers = html("section", { class: "card" }, html("h2", {}, "The weights it has learned so far"), this.weights,
      html("dl", { class: "numbers" },
        html("div", {}, html("dt", {}, "distance to the exact algorithm"), this.error),
        html("div", {}, html("dt", {}, "proved bound, for every input"), this.bound)), this.chart);
    return html("div", {},
      html("h1", {}, "One transformer, many algorithms"),
      html("p", { class: "lead" }, "Two attention layers with frozen weights. ", html("strong", {}, "The prompt says which algorithm they run.")),
      html("section", { class: "card choose" }, this.prompts),
      html("div", { class: "stage first" }, plot, this.inside.prompts, more), html("p", { class: "row" }, this.sha),
      html("div", { class: "inside" }, numbers, this.bend.element), this.phases, this.inside.element);
  }

  private rows(): { x: number[]; y: number }[] {
    return this.plane.points.map(({ x, y, label }) => (this.program.classes ? { x: [1, x, y], y: label } : { x: [1, x], y }));
  }

  private choose(name: string, remember = true): void {
    const program = this.programs.get(name);
    if (program === undefined) return;
    // What has changed is shown beside what was there before, if that learns from such points, too.
    const alike = [...this.programs.values()].filter((each) => each.classes === program.classes && each !== program);
    if (this.program !== program) this.other = this.program;
    if (this.other === null || !alike.includes(this.other)) this.other = alike[0] ?? null;
    this.besides.replaceChildren(html("option", { value: "" }, "nothing"), ...alike.map(({ facts }) => html("option", { value: facts.name }, facts.title)));
    this.besides.value = this.other?.facts.name ?? "";
    this.program = program;
    this.phase = 0;
    const { link, says } = program.facts;
    this.plane.use(this.points.get(link) as Point[], program.classes);
    this.labels.hidden = !program.classes;
    this.says.textContent = `${says[0]?.toUpperCase()}${says.slice(1)}. Step size ${program.facts.step_size}${penalties(program.facts)}.`;
    this.drawPrompts();
    this.drawPhases();
    this.restart(remember);
    this.inside.askFor(0);
  }

  private drawPrompts(): void {
    const group = (legendText: string, classes: boolean): HTMLElement =>
      choice(legendText, "prompt", [...this.programs.values()].filter((each) => each.classes === classes)
        .map(({ facts }) => ({ value: facts.name, label: facts.title, title: facts.says })), this.program.facts.name, (value) => {
          this.choose(value);
          (this.prompts.querySelector("input:checked") as HTMLInputElement | null)?.focus();
        });
    this.prompts.replaceChildren(group("numbers:", false), group("two classes:", true));
  }

  private drawPhases(): void {
    const { phases } = this.program;
    if (phases.length === 1) return this.phases.replaceChildren();
    const options = phases.map(({ name }, k) => ({ value: String(k), label: name === "gradient" ? "gradient step" : "penalty step" }));
    const pick = choice("a step runs the module twice; show below", "phase", options, String(this.phase), (value) => {
      this.phase = Number(value);
      this.draw();
    });
    this.phases.replaceChildren(html("div", { class: "row" }, pick));
  }

  private restart(remember = true): void {
    this.run = new Run(this.program, this.interpreter, this.rows());
    this.otherRun = this.other === null ? null : new Run(this.other, this.interpreter, this.rows());
    this.go(this.step, remember);
  }

  private weightsChanged(): void {
    for (const program of this.programs.values()) program.forget();
    this.inside.bent = this.bend.key;
    this.restart(false);
  }

  private go(step: number, remember = true): void {
    this.step = Math.max(0, Math.min(this.program.facts.steps, step));
    this.run.to(this.step);
    this.otherRun?.to(this.step);
    this.draw();
    if (remember) this.remember();
  }

  private ask(sample: number): void {
    this.plane.highlight(sample);
    this.inside.askFor(sample);
  }

  play(on: boolean): void {
    this.playing = on;
    this.player.replaceChildren(icon(on ? "pause" : "play"), on ? "pause" : "play");
    if (!on) return this.remember();
    if (this.step >= this.program.facts.steps) this.step = 0;
    const pause = still() ? 250 : 60;
    let last = performance.now();
    const frame = (now: number): void => {
      if (!this.playing || !this.element.isConnected) return void (this.playing && this.play(false));
      if (now - last >= pause) {
        last = now;
        this.go(this.step + 1, false);
        if (this.step >= this.program.facts.steps || this.run.refusal !== "") return this.play(false);
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  private key(event: KeyboardEvent): void {
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLButtonElement) return;
    const does: Record<string, () => void> = {
      " ": () => this.play(!this.playing), ArrowRight: () => this.go(this.step + 1), ArrowLeft: () => this.go(this.step - 1),
      Home: () => this.go(0), End: () => this.go(this.program.facts.steps),
    };
    const found = does[event.key];
    if (found === undefined) return;
    event.preventDefault();
    found();
  }

  private addPoint(): void {
    if (this.plane.points.length >= this.program.facts.domain.points) return;
    const low = this.program.facts.link === "rate" ? 0 : -0.9;
    const reach = this.program.classes ? 1 : 1.6;
    const round = (value: number): number => Math.round(value * 1000) / 1000;
    this.plane.points.push({ x: round(1.8 * Math.random() - 0.9), y: round((low + (0.9 - low) * Math.random()) * reach), label: this.plane.adding });
    this.plane.use(this.plane.points, this.program.classes);
    this.restart();
  }

  // The addresses that a run has left in its report's folder, by the names of its algorithms.
  private async openRun(input: HTMLInputElement): Promise<void> {
    try {
      const found = Object.entries(JSON.parse((await input.files?.[0]?.text()) ?? "") as Record<string, string>).filter(([, place]) => place.startsWith("algorithms/"));
      if (found.length === 0) throw new Error("it has no addresses");
      this.places.replaceChildren(...found.map(([name, place]) => html("a", { href: `#${place}` }, name)));
      location.hash = (found[0] as [string, string])[1];
    } catch (error) {
      this.places.textContent = `This is no playground.json of emulon run: ${String(error)}`;
    }
  }

  private shuffle(): void {
    const { link } = this.program.facts;
    this.ran = null;
    const noise = (): number => Math.random() + Math.random() + Math.random() - 1.5;
    const [a, b] = [0.5 * noise(), 1.2 * noise()];
    const clip = (value: number, low: number, high: number): number => Math.round(Math.max(low, Math.min(high, value)) * 1000) / 1000;
    const made = Array.from({ length: 12 }, (_, i): Point => {
      const x = clip(1.9 * Math.random() - 0.95, -1, 1);
      if (link === "rate") return { x, y: clip(0.6 * Math.exp(b * x) + 0.2 * noise(), 0, 2), label: 1 };
      if (link === "residual") return { x, y: clip(a + b * x + 0.4 * noise(), -2, 2), label: 1 };
      const label = i % 2 === 0 ? 1 : -1;
      return { x: clip(0.35 * label * Math.cos(3 * b) + 0.5 * noise(), -1, 1), y: clip(0.35 * label * Math.sin(3 * b) + 0.5 * noise(), -1, 1), label };
    });
    this.points.set(link, made);
    this.plane.use(made, this.program.classes);
    this.restart();
  }

  private original(): void {
    const { link } = this.program.facts;
    this.ran = null;
    const made = structuredClone(KINDS[link]);
    this.points.set(link, made);
    this.plane.use(made, this.program.classes);
    this.restart();
  }

  private draw(): void {
    const { run, step } = this;
    const shown = Math.min(step, run.computed);
    this.slider.value = String(step);
    this.count.textContent = `${step} / ${this.program.facts.steps}`;
    this.refusal.textContent = run.refusal;
    const [own, exact] = [run.own[shown] as number[], run.exact[shown] as number[]];
    const predict = (w: number[], of = this.program) => (x: number, y: number): number => {
      const score = (w[0] as number) + (w[1] as number) * x + (of.classes ? (w[2] as number) * y : 0);
      return of.facts.link === "rate" ? Math.exp(score) : score;
    };
    const beside = this.otherRun?.own[Math.min(step, this.otherRun.computed)] ?? null;
    const past = Array.from({ length: 9 }, (_, k) => Math.floor(shown * (k / 9) ** 2)).filter((t) => t < shown);
    const ran = this.ran?.link === this.program.facts.link ? this.ran : null;
    this.plane.drawFit({
      own: predict(own), exact: predict(exact), past: [...new Set(past)].map((t) => predict(run.own[t] as number[])),
      ran: ran === null ? null : predict(ran.weights), beside: beside === null || this.other === null ? null : predict(beside, this.other),
    });
    this.keys.replaceChildren(legend(this.program.facts.title, `the exact ${this.program.facts.title}`, this.other?.facts.title));
    this.origin.hidden = ran === null;
    this.origin.textContent = ran?.title ?? "";
    this.drawNumbers(own, exact, shown);
    this.drawChart(shown);
    const traces = run.refusal !== "" && run.computed === 0 ? [] : run.traces(shown);
    const trace = traces[Math.min(this.phase, traces.length - 1)];
    if (trace !== undefined) this.inside.show(trace, this.program.facts.title, this.beside(trace, shown));
    this.drawHash();
  }

  // The other algorithm's prompt for these points and weights: what then differs is what names the algorithm.
  private beside(trace: Trace, shown: number): Other | null {
    const phase = this.other?.phases.find(({ name }) => name === trace.phase.name);
    if (phase === undefined || this.other === null || this.otherRun === null) return null;
    const from = Math.max(0, shown - 1);
    const [w, before] = [this.run.own[from] as number[], this.run.own[Math.max(0, from - 1)] as number[]];
    return { title: this.other.facts.title, phase, tokens: phase.prompt(this.otherRun.data, w, before) };
  }

  private drawNumbers(own: number[], exact: number[], shown: number): void {
    const names = this.program.classes ? ["constant", "x₁", "x₂"] : ["constant", "slope"];
    const cell = (value: number, other: number): HTMLElement => {
      const { text, same } = digits(value, other);
      return html("td", {}, html("span", { class: "same" }, text.slice(0, same)), html("span", { class: "off" }, text.slice(same)));
    };
    const rows = (title: string, mine: number[], theirs: number[]): HTMLElement[] => [
      html("tr", {}, html("th", {}, html("b", {}, title)), html("th", {}, "transformer"), html("th", {}, "exact algorithm")),
      ...names.map((name, k) => html("tr", {}, html("th", {}, name), cell(mine[k] as number, theirs[k] as number), cell(theirs[k] as number, mine[k] as number)))];
    const other = this.otherRun;
    const at = Math.min(shown, other?.computed ?? 0);
    this.weights.replaceChildren(html("table", {}, html("tbody", {}, ...rows(this.program.facts.title, own, exact),
      ...(other === null ? [] : rows(other.program.facts.title, other.own[at] as number[], other.exact[at] as number[])))));
    this.weights.dataset.beside = JSON.stringify(other?.own[at] ?? []);
    this.weights.dataset.own = JSON.stringify(own);
    this.weights.dataset.exact = JSON.stringify(exact);
    this.error.textContent = scientific(this.run.error(shown));
    const bound = this.bend.active ? Infinity : this.run.bound(shown);
    this.bound.textContent = Number.isFinite(bound) ? atMost(bound) : this.bend.active ? "none: weights changed" : "none: at a jump";
    this.bound.classList.toggle("warn", !Number.isFinite(bound));
  }

  private drawChart(shown: number): void {
    const { run } = this;
    const x = linear([0, this.program.facts.steps], [66, 412]);
    const y = logarithmic([SMALLEST, 10], [118, 6]);
    const parts: SVGElement[] = [];
    for (const power of [-16, -12, -8, -4, 0]) {
      parts.push(svg("line", { class: "grid", x1: 66, x2: 412, y1: y(10 ** power), y2: y(10 ** power) }),
        svg("text", { x: 62, y: y(10 ** power) + 4, "text-anchor": "end" }, power === 0 ? "1" : tenTo(power)));
    }
    const steps = Array.from({ length: run.computed + 1 }, (_, t) => t).slice(1);
    if (!this.bend.active) {
      const promised = Array.from({ length: this.program.facts.steps }, (_, t) => t + 1).filter((t) => Number.isFinite(run.bound(t)));
      parts.push(svg("path", { class: "bound", d: path(promised.map((t) => [x(t), y(run.bound(t))])) }));
    }
    parts.push(svg("path", { class: "curve", d: path(steps.map((t) => [x(t), y(run.error(t))])) }),
      svg("line", { class: "now", x1: x(shown), x2: x(shown), y1: 6, y2: 118 }),
      ...[0, 50, 100, 150, 200].map((t) => svg("text", { x: x(t), y: 132, "text-anchor": "middle" }, String(t))),
      svg("text", { class: "axis-name", x: 239, y: 148, "text-anchor": "middle" }, "step (line: distance; dashes: bound)"),
      svg("text", { class: "axis-name", transform: "translate(12 62) rotate(-90)", "text-anchor": "middle" }, "distance"));
    this.chart.replaceChildren(...parts);
  }

  private hashes = 0;

  private drawHash(): void {
    const turn = ++this.hashes;
    void this.interpreter.sha256().then((now) => {
      if (turn !== this.hashes) return;
      const changed = now !== this.frozen;
      this.sha.classList.toggle("changed", changed);
      const whose = this.other === null ? "" : `: the same for ${this.program.facts.title} and ${this.other.facts.title}`;
      this.sha.textContent = changed ? `sha256 ${now} (not the frozen weights any more)` : `frozen weights, sha256 ${now}${whose}`;
      this.sha.dataset.sha256 = now;
    });
  }

  private waiting = 0;

  // The address holds the prompt, the step and the points: it can be kept, and sent.
  private remember(): void {
    clearTimeout(this.waiting);
    this.waiting = window.setTimeout(() => {
      if (!this.element.isConnected) return;
      const points = this.plane.points.map(({ x, y, label }) => (this.program.classes ? [x, y, label] : [x, y]).join(",")).join(";");
      const ran = this.ran?.link === this.program.facts.link ? `/${this.ran.weights.join(",")}/${encodeURIComponent(this.ran.title)}` : "";
      history.replaceState(null, "", `#algorithms/${this.program.facts.name}/${this.step}/${points}${ran}`);
    }, 300);
  }

  show([name, step, points, weights, ...title]: string[]): void {
    if (points !== undefined && name !== undefined && this.programs.has(name)) {
      const { link, domain } = (this.programs.get(name) as Program).facts;
      const made = points.split(";").map((each) => each.split(",").map(Number))
        .filter(([x, y]) => Math.abs(x as number) <= 1 && Math.abs(y as number) <= 2)
        .map(([x, y, label]): Point => ({ x: x as number, y: y as number, label: label === -1 ? -1 : 1 }));
      if (made.length >= 2) this.points.set(link, made.slice(0, domain.points));
      const fitted = weights?.split(",").map(Number) ?? [];
      const wanted = (this.programs.get(name) as Program).features;
      if (fitted.length === wanted && fitted.every(Number.isFinite)) this.ran = { link, weights: fitted, title: title.join("/") };
    }
    if (step !== undefined && Number.isFinite(Number(step))) this.step = Math.round(Number(step));
    if (name !== undefined && this.programs.has(name)) this.choose(name, false);
  }

  redraw(): void {
    this.inside.redraw();
  }
}

function penalties({ l1, l2, momentum }: Facts): string {
  const parts = [l2 > 0 ? `λ₂ = ${l2}` : "", l1 > 0 ? `λ₁ = ${l1}` : "", momentum > 0 ? `momentum ${momentum}` : ""];
  return parts.filter((part) => part !== "").map((part) => `, ${part}`).join("");
}
