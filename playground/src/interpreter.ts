// The frozen two-layer interpreter, in double precision: every token, head and score that Python's faithful path computes.

import { type Tensor, type TensorFile, tensor } from "./files";

const BUFFERS = ["slopes", "intercepts", "values", "assemble.w_k", "assemble.w_q", "assemble.w_v"] as const;
export type Buffer = (typeof BUFFERS)[number];

// A matrix by its entries that are not zero: selectors have one a row.
export type Row = { readonly at: Int32Array; readonly by: Float64Array };

export function sparse(matrix: Tensor): Row[] {
  const [rows, columns] = matrix.shape as [number, number];
  return Array.from({ length: rows }, (_, r) => {
    const at: number[] = [];
    for (let c = 0; c < columns; c++) if (matrix.values[r * columns + c] !== 0) at.push(c);
    return { at: Int32Array.from(at), by: Float64Array.from(at, (c) => matrix.values[r * columns + c] as number) };
  });
}

export interface Head {
  readonly keys: Row[];
  readonly queries: Row[];
  readonly values: Row[];
}

export interface Attention {
  // Layer 1: for each row of W_K, W_Q, W_V, then for each token, what the number line said of θ·x, and θ·x itself.
  readonly asked: Float64Array[];
  readonly read: Float64Array[];
  // Layer 2: the weights, queries × tokens, and the answers, row by row of the head.
  readonly weights: Float64Array;
  readonly answers: Float64Array[];
}

export class Interpreter {
  readonly buffers: Map<Buffer, Tensor>;
  private readonly capacity: string;
  private readonly seen = new Map<number, number>();
  private assemble: Head;

  constructor(file: TensorFile) {
    this.buffers = new Map(BUFFERS.map((name) => {
      const { shape, values } = tensor(file, name);
      return [name, { shape, values: values.slice() }];
    }));
    this.capacity = file.facts.get("capacity") ?? "";
    this.assemble = this.assembling();
  }

  buffer(name: Buffer): Tensor {
    return this.buffers.get(name) as Tensor;
  }

  get keys(): number {
    return this.buffer("slopes").values.length;
  }

  get width(): number {
    return this.buffer("assemble.w_k").shape[0] as number;
  }

  set(name: Buffer, index: number, value: number): void {
    this.buffer(name).values[index] = value;
    this.seen.clear();
    this.assemble = this.assembling();
  }

  private assembling(): Head {
    const [keys, queries, values] = (["assemble.w_k", "assemble.w_q", "assemble.w_v"] as const).map((name) =>
      sparse(this.buffer(name)),
    ) as [Row[], Row[], Row[]];
    return { keys, queries, values };
  }

  // As Python's Interpreter.sha256: the capacity, then every frozen number under its name.
  async sha256(): Promise<string> {
    // Browsers offer it to pages from this machine or over https only.
    if (globalThis.crypto?.subtle === undefined) return "(not computed: this page did not come over https)";
    const parts: Uint8Array[] = [new TextEncoder().encode(this.capacity)];
    for (const [name, { values }] of this.buffers) {
      parts.push(new TextEncoder().encode(name), new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    }
    const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      whole.set(part, at);
      at += part.length;
    }
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
    return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  // The weights of layer 1's softmax at the number s, over the keys of the number line.
  line(s: number): Float64Array {
    const [slopes, intercepts] = [this.buffer("slopes").values, this.buffer("intercepts").values];
    const weights = new Float64Array(slopes.length);
    let top = -Infinity;
    for (let r = 0; r < weights.length; r++) {
      const score = (slopes[r] as number) * s + (intercepts[r] as number);
      weights[r] = score;
      if (score > top) top = score;
    }
    let sum = 0;
    for (let r = 0; r < weights.length; r++) sum += weights[r] = Math.exp((weights[r] as number) - top);
    for (let r = 0; r < weights.length; r++) weights[r] = (weights[r] as number) / sum;
    return weights;
  }

  // The same number read twice gives the same number: it is looked up, as a language model looks up its keys.
  read(s: number): number {
    const known = this.seen.get(s);
    if (known !== undefined) return known;
    const weights = this.line(s);
    const values = this.buffer("values").values;
    let sum = 0;
    for (let r = 0; r < weights.length; r++) sum += (weights[r] as number) * (values[r] as number);
    if (this.seen.size > 400_000) this.seen.clear();
    this.seen.set(s, sum);
    return sum;
  }

  // Layer 1 for one row θ: tokens are held feature by feature, each a column of all tokens.
  project(row: Row, tokens: Float64Array[], count: number): [Float64Array, Float64Array] {
    const asked = new Float64Array(count);
    for (let k = 0; k < row.at.length; k++) {
      const column = tokens[row.at[k] as number] as Float64Array;
      const by = row.by[k] as number;
      for (let t = 0; t < count; t++) asked[t] = (asked[t] as number) + by * (column[t] as number);
    }
    const read = new Float64Array(count);
    let last = NaN;
    let value = 0;
    for (let t = 0; t < count; t++) {
      const s = asked[t] as number;
      if (s !== last) [last, value] = [s, this.read(s)];
      read[t] = value;
    }
    return [asked, read];
  }

  // Layer 2 on what layer 1 read: the first `queries` tokens ask all of them.
  attend(asked: Float64Array[], read: Float64Array[], queries: number): Attention {
    const count = (read[0] as Float64Array).length;
    const combined = (rows: Row[], length: number): Float64Array[] =>
      rows.map(({ at, by }) => {
        const out = new Float64Array(length);
        for (let k = 0; k < at.length; k++) {
          const from = read[at[k] as number] as Float64Array;
          const factor = by[k] as number;
          for (let t = 0; t < length; t++) out[t] = (out[t] as number) + factor * (from[t] as number);
        }
        return out;
      });
    const asking = combined(this.assemble.queries, queries);
    const keys = combined(this.assemble.keys, count);
    const values = combined(this.assemble.values, count);
    const weights = new Float64Array(queries * count);
    for (let i = 0; i < queries; i++) {
      const scores = weights.subarray(i * count, (i + 1) * count);
      for (let k = 0; k < keys.length; k++) {
        const q = (asking[k] as Float64Array)[i] as number;
        const key = keys[k] as Float64Array;
        for (let t = 0; t < count; t++) scores[t] = (scores[t] as number) + q * (key[t] as number);
      }
      softmax(scores);
    }
    const answers = values.map((value) => {
      const out = new Float64Array(queries);
      for (let i = 0; i < queries; i++) {
        let sum = 0;
        for (let t = 0; t < count; t++) sum += (weights[i * count + t] as number) * (value[t] as number);
        out[i] = sum;
      }
      return out;
    });
    return { asked, read, weights, answers };
  }
}

export function softmax(scores: Float64Array): void {
  let top = -Infinity;
  for (const score of scores) if (score > top) top = score;
  let sum = 0;
  for (let t = 0; t < scores.length; t++) sum += scores[t] = Math.exp((scores[t] as number) - top);
  for (let t = 0; t < scores.length; t++) scores[t] = (scores[t] as number) / sum;
}
