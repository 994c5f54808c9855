// A program: the fixed coefficients of its prompt. Nothing in here knows an algorithm.

import { type Attention, type Interpreter, type Row, sparse } from "./interpreter";
import { type Tensor, type TensorFile, tensor } from "./files";

export interface Facts {
  readonly name: string;
  readonly title: string;
  readonly says: string;
  readonly loss: string;
  readonly derivative: string;
  readonly link: "residual" | "margin" | "rate";
  readonly steps: number;
  readonly step_size: number;
  readonly l1: number;
  readonly l2: number;
  readonly momentum: number;
  readonly domain: { points: number; x: number; y: number; w: number; residual: number };
  readonly bounds: number[];
  readonly bands: [number, number][];
}

// The data as the template sees them: rows x, targets y, and what each row adds to the gradient whatever w is.
export interface Sample {
  readonly x: number[];
  readonly y: number;
  readonly fixed: number[];
}

export interface Trace extends Attention {
  readonly phase: Phase;
  readonly tokens: Float64Array[];
  readonly samples: number;
}

interface Term {
  readonly column: number;
  readonly source: number;
  readonly factor: number;
}

export class Phase {
  readonly name: string;
  readonly slots: [string, number, number][];
  readonly keys: number;
  private readonly grid: Tensor;
  private readonly maps: Term[][];
  private readonly asks: Term[][];
  private readonly codes: Tensor;
  private readonly own: Tensor | null;
  // The weights of the head that is emulated, which the prompt carries beside its tokens: rows of W_K, W_Q, W_V.
  readonly rows: Row[];
  private readonly readout: Tensor;
  private readonly features: number;
  // Rows of the head that read something of the state: all others are read once for all steps.
  private readonly moving: boolean[];
  private cache: { samples: readonly Sample[]; tokens: Float64Array[]; asked: Float64Array[]; read: Float64Array[] } | null =
    null;

  constructor(file: TensorFile, name: string, slots: Record<string, [number, number]>, features: number) {
    const part = (what: string): Tensor => tensor(file, `${name}.${what}`);
    this.name = name;
    this.features = features;
    this.slots = Object.entries(slots).map(([slot, [start, stop]]): [string, number, number] => [slot, start, stop]);
    this.slots.sort((a, b) => a[1] - b[1]);
    this.grid = part("grid");
    this.keys = this.grid.shape[0] as number;
    this.codes = part("codes");
    this.readout = part("readout");
    this.own = file.tensors.get(`${name}.samples`) ?? null;
    this.rows = ["w_k", "w_q", "w_v"].flatMap((what) => sparse(part(what)));
    const maps = part("maps");
    const [columns, width, sources] = maps.shape as [number, number, number];
    const asks = sparse(part("asks"));
    const stated = 2 * features + 1 + (this.codes.shape[1] as number);
    this.maps = Array.from({ length: width }, (_, f) => {
      const terms: Term[] = [];
      for (let column = 0; column < columns; column++) {
        for (let source = 0; source < sources; source++) {
          const factor = maps.values[(column * width + f) * sources + source] as number;
          if (factor !== 0) terms.push({ column, source, factor });
        }
      }
      return terms;
    });
    this.asks = asks.map(({ at, by }) => Array.from(at, (source, k) => ({ column: 0, source, factor: by[k] as number })));
    const moves = (f: number): boolean =>
      [...(this.maps[f] as Term[]), ...(this.asks[f] as Term[])].some(
        ({ source }) => source >= stated && source < sources - 1,
      );
    this.moving = this.rows.map(({ at }) => Array.from(at).some(moves));
  }

  private samplesOf(data: readonly Sample[]): readonly Sample[] {
    if (this.own === null) return data;
    const d = this.features;
    const row = (i: number): number[] => Array.from(this.own!.values.subarray(i * (2 * d + 1), (i + 1) * (2 * d + 1)));
    return Array.from({ length: this.own.shape[0] as number }, (_, i) => {
      const all = row(i);
      return { x: all.slice(0, d), y: all[d] as number, fixed: all.slice(d + 1) };
    });
  }

  // Token (i, j): each feature is affine in u_i = (x_i, y_i, fixed_i, code_i, state, before, 1).
  prompt(data: readonly Sample[], state: readonly number[], before: readonly number[]): Float64Array[] {
    const samples = this.samplesOf(data);
    const width = this.codes.shape[1] as number;
    const us = samples.map(({ x, y, fixed }, i) => [
      ...x, y, ...fixed, ...this.codes.values.subarray(i * width, (i + 1) * width), ...state, ...before, 1,
    ]);
    const count = samples.length * this.keys;
    const columns = this.grid.shape[1] as number;
    return this.maps.map((terms, f) => {
      const feature = new Float64Array(count);
      for (const { column, source, factor } of terms) {
        us.forEach((u, i) => {
          const value = factor * (u[source] as number);
          for (let j = 0; j < this.keys; j++) {
            const t = i * this.keys + j;
            feature[t] = (feature[t] as number) + (this.grid.values[j * columns + column] as number) * value;
          }
        });
      }
      for (const { source, factor } of this.asks[f] as Term[]) {
        us.forEach((u, i) => {
          feature[i] = (feature[i] as number) + factor * (u[source] as number);
        });
      }
      return feature;
    });
  }

  apply(
    interpreter: Interpreter, data: readonly Sample[], state: readonly number[], before: readonly number[],
  ): { state: number[]; trace: Trace } {
    const rows = this.samplesOf(data);
    const tokens = this.prompt(data, state, before);
    const count = rows.length * this.keys;
    const kept = this.cache?.samples === data ? this.cache : null;
    const asked: Float64Array[] = [];
    const read: Float64Array[] = [];
    this.rows.forEach((row, r) => {
      const [s, value] =
        kept !== null && !this.moving[r]
          ? [kept.asked[r] as Float64Array, kept.read[r] as Float64Array]
          : interpreter.project(row, tokens, count);
      asked.push(s);
      read.push(value);
    });
    this.cache = { samples: data, tokens, asked, read };
    const seen = interpreter.attend(asked, read, rows.length);
    const means = seen.answers.map((answer) => answer.reduce((sum, each) => sum + each, 0) / rows.length);
    const d = this.features;
    const next = Array.from({ length: d }, (_, k) =>
      means.reduce((sum, mean, r) => sum + mean * (this.readout.values[r * d + k] as number), 0),
    );
    return { state: next, trace: { ...seen, phase: this, tokens, samples: rows.length } };
  }

  forget(): void {
    this.cache = null;
  }

  // The first row of the head that reads a feature; −1 where none does.
  reader(feature: number): number {
    return this.rows.findIndex(({ at }) => at.includes(feature));
  }
}

export class Program {
  readonly phases: Phase[];
  readonly features: number;

  constructor(readonly facts: Facts, file: TensorFile) {
    const header = JSON.parse(file.facts.get("emulon") ?? "{}") as {
      facts: { features: number; phases: { name: string; slots: Record<string, [number, number]> }[] };
    };
    this.features = header.facts.features;
    this.phases = header.facts.phases.map(({ name, slots }) => new Phase(file, name, slots, this.features));
  }

  get classes(): boolean {
    return this.facts.link === "margin";
  }

  samples(rows: readonly { x: number[]; y: number }[]): Sample[] {
    return samplesOf(this.facts.link, rows);
  }

  step(
    interpreter: Interpreter, data: readonly Sample[], state: readonly number[], before: readonly number[],
  ): { state: number[]; traces: Trace[] } {
    const traces: Trace[] = [];
    let now = [...state];
    for (const phase of this.phases) {
      const done = phase.apply(interpreter, data, now, before);
      now = done.state;
      traces.push(done.trace);
    }
    return { state: now, traces };
  }

  forget(): void {
    for (const phase of this.phases) phase.forget();
  }
}

// What enters the template, as the loss's link says.
export function samplesOf(link: Facts["link"], rows: readonly { x: number[]; y: number }[]): Sample[] {
  const zeros = ({ x }: { x: number[] }): number[] => x.map(() => 0);
  if (link === "margin") return rows.map((row) => ({ x: row.x.map((each) => row.y * each), y: 0, fixed: zeros(row) }));
  if (link === "rate") return rows.map(({ x, y }) => ({ x, y: 0, fixed: x.map((each) => y * each) }));
  return rows.map((row) => ({ ...row, fixed: zeros(row) }));
}
