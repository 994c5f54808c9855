// A run of a program beside its exact algorithm, as far as somebody has looked; and what is promised of it.

import { descend, residuals } from "./exact";
import type { Interpreter } from "./interpreter";
import type { Program, Sample, Trace } from "./program";

export class Run {
  readonly data: Sample[];
  readonly own: number[][];
  readonly exact: number[][];
  // Why the program does not take these data, or went no further; and since when nothing is promised.
  refusal = "";
  unpromised = Infinity;

  constructor(readonly program: Program, private readonly interpreter: Interpreter, rows: { x: number[]; y: number }[]) {
    this.data = program.samples(rows);
    const start = Array<number>(program.features).fill(0);
    this.own = [start];
    this.exact = [start];
    if (program.facts.link === "rate" && rows.some(({ y }) => y < 0)) {
      this.refusal = "Counts cannot be negative: lift the points above 0.";
    }
  }

  get computed(): number {
    return this.own.length - 1;
  }

  to(step: number): void {
    while (this.computed < step && this.refusal === "") this.advance();
  }

  private advance(): void {
    const { facts } = this.program;
    const t = this.computed;
    const [w, before] = [this.own[t] as number[], this.own[Math.max(0, t - 1)] as number[]];
    const largest = Math.max(...w.map(Math.abs));
    const off = residuals(this.data, w);
    const furthest = Math.max(...off.map(Math.abs));
    // Written for what is right, so that a NaN is refused, too.
    if (!(largest <= facts.domain.w)) {
      this.refusal = `After step ${t} a weight is ${largest.toPrecision(3)}; the prompt was compiled for ${facts.domain.w}.`;
      return;
    }
    if (!(furthest <= facts.domain.residual)) {
      this.refusal = `After step ${t} a residual is ${furthest.toPrecision(3)}; the prompt was compiled for ${facts.domain.residual}.`;
      return;
    }
    if (!this.promised(off)) this.unpromised = Math.min(this.unpromised, t);
    this.own.push(this.program.step(this.interpreter, this.data, w, before).state);
    this.exact.push(descend(facts, this.data, this.exact[t] as number[], this.exact[Math.max(0, t - 1)] as number[]));
  }

  // Near a jump of ℓ′ nothing is; nor where steps are longer than the curvature bears (counts only: elsewhere it is bounded).
  private promised(off: number[]): boolean {
    const { facts } = this.program;
    if (off.some((t) => facts.bands.some(([lo, hi]) => t > lo && t < hi))) return false;
    if (facts.link !== "rate") return true;
    const trace = this.data.reduce((sum, { x }, i) => sum + Math.exp(off[i] as number) * x.reduce((all, each) => all + each * each, 0), 0);
    return facts.step_size * (trace / this.data.length + facts.l2) <= 2;
  }

  error(step: number): number {
    return Math.max(...(this.own[step] as number[]).map((each, k) => Math.abs(each - ((this.exact[step] as number[])[k] as number))));
  }

  bound(step: number): number {
    return step > this.unpromised ? Infinity : (this.program.facts.bounds[step] as number);
  }

  // The attention of the step that led to this state, or of the one that will be taken from the start.
  traces(step: number): Trace[] {
    const from = Math.max(0, step - 1);
    return this.program.step(this.interpreter, this.data, this.own[from] as number[], this.own[Math.max(0, from - 1)] as number[]).traces;
  }
}
