// GPT-2's blocks in double precision: what trained learners and compiled register machines have in common.

import { softmax } from "./interpreter";
import { type Tensor, type TensorFile, tensor } from "./files";

export type Stream = Float64Array[];

// (out, in) times every token, plus a bias.
export function affine(stream: Stream, weight: Tensor, bias: Tensor | null): Stream {
  const [rows, columns] = weight.shape as [number, number];
  const { values } = weight;
  return stream.map((token) => {
    const out = new Float64Array(rows);
    for (let r = 0, at = 0; r < rows; r++) {
      let sum = 0;
      for (let c = 0; c < columns; c++, at++) sum += (values[at] as number) * (token[c] as number);
      out[r] = bias === null ? sum : sum + (bias.values[r] as number);
    }
    return out;
  });
}

export function normed(stream: Stream, gain: Tensor, bias: Tensor | null): Stream {
  return stream.map((token) => {
    const mean = token.reduce((sum, each) => sum + each, 0) / token.length;
    const variance = token.reduce((sum, each) => sum + (each - mean) ** 2, 0) / token.length;
    const size = Math.sqrt(variance + 1e-5);
    return token.map((each, k) => ((each - mean) / size) * (gain.values[k] as number) + (bias === null ? 0 : (bias.values[k] as number)));
  });
}

export function added(stream: Stream, more: Stream): Stream {
  return stream.map((token, t) => token.map((each, k) => each + ((more[t] as Float64Array)[k] as number)));
}

// erf by a series of positive terms, in which nothing cancels; beyond 6 it is 1.
export function erf(x: number): number {
  const [size, side] = [Math.min(Math.abs(x), 6), Math.sign(x)];
  const v = size * size;
  let [term, sum] = [size, size];
  for (let k = 1; term > 1e-18 * sum && k < 200; k++) {
    term *= (2 * v) / (2 * k + 1);
    sum += term;
  }
  return side * Math.min(1, (2 / Math.sqrt(Math.PI)) * Math.exp(-v) * sum);
}

export const gelu = (z: number): number => 0.5 * z * (1 + erf(z * Math.SQRT1_2));
export const geluByTanh = (z: number): number => 0.5 * z * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (z + 0.044715 * z ** 3)));

// What the heads read, and, where they are asked for, the weights of each head, tokens × tokens. Token t may look at the
// first `before(t)` tokens and at itself.
export function attended(
  qkv: Stream, heads: number, scale: number, before: (t: number) => number, keep: boolean,
): { read: Stream; weights: Float64Array[] } {
  const width = (qkv[0] as Float64Array).length / 3;
  const size = width / heads;
  const read = qkv.map(() => new Float64Array(width));
  const weights = keep ? Array.from({ length: heads }, () => new Float64Array(qkv.length * qkv.length)) : [];
  for (let h = 0; h < heads; h++) {
    const [q, k, v] = [h * size, width + h * size, 2 * width + h * size];
    qkv.forEach((asking, t) => {
      const others = before(t);
      const seen = (n: number): Float64Array => (n < others ? qkv[n] : asking) as Float64Array;
      const scores = new Float64Array(others + 1);
      for (let n = 0; n <= others; n++) {
        const token = seen(n);
        let sum = 0;
        for (let d = 0; d < size; d++) sum += (asking[q + d] as number) * (token[k + d] as number);
        scores[n] = sum * scale;
      }
      softmax(scores);
      const out = read[t] as Float64Array;
      for (let n = 0; n <= others; n++) {
        const token = seen(n);
        const weight = scores[n] as number;
        for (let d = 0; d < size; d++) out[h * size + d] = (out[h * size + d] as number) + weight * (token[v + d] as number);
        if (keep) (weights[h] as Float64Array)[t * qkv.length + (n < others ? n : t)] = weight;
      }
    });
  }
  return { read, weights };
}

export interface Pass {
  // The residual stream before the first block and after each, and each block's attention, head by head.
  readonly streams: Stream[];
  readonly attention: Float64Array[][];
}

// A register machine, as emulon.export writes it.
export function runMachine(file: TensorFile, embedded: Stream, heads: number): Pass {
  const positions = tensor(file, "positions");
  const width = positions.shape[1] as number;
  let stream: Stream = embedded.map((token, t) => token.map((each, k) => each + (positions.values[t * width + k] as number)));
  const [streams, attention]: [Stream[], Float64Array[][]] = [[stream], []];
  for (let layer = 0; file.tensors.has(`${layer}.attention`); layer++) {
    const part = (name: string): Tensor => tensor(file, `${layer}.${name}`);
    const { read, weights } = attended(affine(normed(stream, part("gain"), null), part("attention"), null), heads, 1, (t) => t, true);
    stream = added(stream, affine(read, part("output"), part("output_bias")));
    const units = affine(normed(stream, part("mlp_gain"), null), part("inward"), null).map((token) => token.map(gelu));
    stream = added(stream, affine(units, part("outward"), part("outward_bias")));
    streams.push(stream);
    attention.push(weights);
  }
  return { streams, attention };
}

export interface Question {
  readonly x: number;
  // How many of the pairs it comes after.
  readonly after: number;
}

// A learner's answers to many questions: the context is read once, and a question sees its part of it and itself.
export function ask(file: TensorFile, context: readonly [number, number][], questions: readonly Question[], heads: number): number[] {
  const part = (name: string): Tensor => tensor(file, name);
  const position = part("position");
  const width = position.shape[1] as number;
  const length = 2 * context.length;
  const tokens: Stream = context.flatMap(([x, y]) => [Float64Array.of(0, x), Float64Array.of(y, 0)]);
  for (const { x } of questions) tokens.push(Float64Array.of(0, x));
  const before = (t: number): number => (t < length ? t : 2 * (questions[t - length] as Question).after);
  let stream: Stream = affine(tokens, part("read_in.weight"), part("read_in.bias")).map((token, t) =>
    token.map((each, k) => each + (position.values[before(t) * width + k] as number)),
  );
  const head = (name: string, given: Stream): Stream => affine(given, part(`${name}.weight`), part(`${name}.bias`));
  const norm = (name: string, given: Stream): Stream => normed(given, part(`${name}.weight`), part(`${name}.bias`));
  for (let layer = 0; file.tensors.has(`decoder.blocks.${layer}.widen.weight`); layer++) {
    const name = `decoder.blocks.${layer}`;
    const qkv = head(`${name}.attention.to_qkv`, norm(`${name}.attention_norm`, stream));
    stream = added(stream, head(`${name}.attention.merge`, attended(qkv, heads, 1 / Math.sqrt(width / heads), before, false).read));
    const units = head(`${name}.widen`, norm(`${name}.mlp_norm`, stream)).map((token) => token.map(geluByTanh));
    stream = added(stream, head(`${name}.narrow`, units));
  }
  return head("read_out", norm("decoder.last_norm", stream).slice(length)).map((answer) => answer[0] as number);
}
