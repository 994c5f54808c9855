// A stock LlamaForCausalLM in float32, a token at a time, with a key and value cache. Weights are held by what is not zero.

import { type TensorFile, tensor } from "./files";

interface Config {
  hidden_size: number;
  head_dim: number;
  num_hidden_layers: number;
  num_attention_heads: number;
  rms_norm_eps: number;
  rope_theta: number;
  bos_token_id: number;
  eos_token_id: number;
  max_position_embeddings: number;
}

export interface Facts {
  readonly config: Config;
  readonly shapes: Record<string, number[]>;
  readonly sha256: string;
  readonly words: string[];
  readonly registers: Record<string, [number, number]>;
  // Of every layer the heads, by what they read and where, and the instructions of the MLP.
  readonly heads: { where: string; reads: string[] }[][];
  readonly units: string[][];
  readonly methods: Record<string, string>;
}

// Rows of a matrix: entries from[r] up to from[r + 1].
interface Sparse {
  readonly from: Int32Array;
  readonly at: Int32Array;
  readonly by: Float64Array;
}

export interface Look {
  readonly layer: number;
  readonly head: number;
  readonly to: [token: number, weight: number][];
}

export interface Thought {
  // The residual stream after the last layer, where each head looked, and the word that comes next.
  readonly stream: Float32Array;
  readonly looks: Look[];
  readonly next: number;
}

// A weight below this is not shown.
const SEEN = 0.004;
const { fround } = Math;

export class Stock {
  readonly facts: Facts;
  private readonly parts = new Map<string, Sparse>();
  // The heads of every layer whose output goes anywhere.
  private readonly used: number[][];
  private readonly frequencies: Float32Array;
  private cache: { keys: Float32Array[]; values: Float32Array[] }[] = [];
  length = 0;

  constructor(private readonly file: TensorFile) {
    this.facts = JSON.parse(file.facts.get("emulon") ?? "{}") as Facts;
    const { config, shapes } = this.facts;
    for (const [name, shape] of Object.entries(shapes)) this.parts.set(name, rows(this.places(name), tensor(file, `${name}.values`).values, shape));
    this.used = Array.from({ length: config.num_hidden_layers }, (_, layer) => {
      const read = new Set(Array.from(this.part(layer, "self_attn.o_proj").at, (column) => Math.floor(column / config.head_dim)));
      return [...read].sort((a, b) => a - b);
    });
    const half = config.head_dim / 2;
    this.frequencies = Float32Array.from({ length: half }, (_, j) => fround(1 / fround(config.rope_theta ** fround(j / half))));
    this.reset();
  }

  private places(name: string): Int32Array {
    let at = 0;
    return Int32Array.from(tensor(this.file, `${name}.steps`).values, (step) => (at += step));
  }

  private part(layer: number, name: string): Sparse {
    return this.parts.get(`model.layers.${layer}.${name}.weight`) as Sparse;
  }

  reset(): void {
    this.length = 0;
    this.cache = Array.from({ length: this.facts.config.num_hidden_layers }, () => ({ keys: [], values: [] }));
  }

  // The next token of the text.
  append(token: number): Thought {
    const { hidden_size: width, num_hidden_layers: depth } = this.facts.config;
    const stream = new Float32Array(width);
    const table = this.parts.get("model.embed_tokens.weight") as Sparse;
    for (let k = table.from[token] as number; k < (table.from[token + 1] as number); k++) stream[table.at[k] as number] = table.by[k] as number;
    const looks: Look[] = [];
    for (let layer = 0; layer < depth; layer++) {
      add(stream, this.attention(layer, this.normed(stream, this.part(layer, "input_layernorm")), looks));
      const seen = this.normed(stream, this.part(layer, "post_attention_layernorm"));
      const gate = times(this.part(layer, "mlp.gate_proj"), seen);
      const up = times(this.part(layer, "mlp.up_proj"), seen);
      add(stream, times(this.part(layer, "mlp.down_proj"), gate.map((z, k) => fround(z / (1 + Math.exp(-z))) * (up[k] as number))));
    }
    this.length++;
    const scores = times(this.parts.get("lm_head.weight") as Sparse, this.normed(stream, this.parts.get("model.norm.weight") as Sparse));
    let next = 0;
    for (let word = 1; word < scores.length; word++) if ((scores[word] as number) > (scores[next] as number)) next = word;
    return { stream, looks, next };
  }

  private normed(stream: Float32Array, gain: Sparse): Float32Array {
    const mean = fround(stream.reduce((sum, each) => sum + each * each, 0) / stream.length);
    const factor = fround(1 / Math.sqrt(fround(mean + this.facts.config.rms_norm_eps)));
    return stream.map((each, k) => fround(each * factor) * (gain.by[k] as number));
  }

  // Pairs (j, j + half) of every head turn by the token's place.
  private turned(vector: Float32Array): Float32Array {
    const half = this.frequencies.length;
    const out = new Float32Array(vector.length);
    for (let j = 0; j < half; j++) {
      const angle = fround(this.length * (this.frequencies[j] as number));
      const [cosine, sine] = [fround(Math.cos(angle)), fround(Math.sin(angle))];
      for (let at = j; at < vector.length; at += 2 * half) {
        const [a, b] = [vector[at] as number, vector[at + half] as number];
        out[at] = fround(a * cosine) - fround(b * sine);
        out[at + half] = fround(b * cosine) + fround(a * sine);
      }
    }
    return out;
  }

  private attention(layer: number, seen: Float32Array, looks: Look[]): Float32Array {
    const { head_dim: size, num_attention_heads: heads } = this.facts.config;
    const { keys, values } = this.cache[layer] as { keys: Float32Array[]; values: Float32Array[] };
    keys.push(this.turned(times(this.part(layer, "self_attn.k_proj"), seen)));
    values.push(times(this.part(layer, "self_attn.v_proj"), seen));
    const queries = this.turned(times(this.part(layer, "self_attn.q_proj"), seen));
    const read = new Float32Array(heads * size);
    for (const head of this.used[layer] as number[]) {
      const query = queries.subarray(head * size, (head + 1) * size);
      const asked = Array.from(query.keys()).filter((d) => query[d] !== 0);
      const scores = Float32Array.from(keys, (key) => asked.reduce((sum, d) => sum + (query[d] as number) * (key[d] as number), 0) / Math.sqrt(size));
      const top = scores.reduce((most, each) => Math.max(most, each), -Infinity);
      let sum = 0;
      for (let t = 0; t < scores.length; t++) sum += scores[t] = Math.exp((scores[t] as number) - top);
      const sums = new Float64Array(size);
      const to: [number, number][] = [];
      for (let t = 0; t < scores.length; t++) {
        const weight = fround((scores[t] as number) / fround(sum));
        if (weight === 0) continue;
        if (weight > SEEN) to.push([t, weight]);
        const value = values[t] as Float32Array;
        for (let d = 0; d < size; d++) sums[d] = (sums[d] as number) + weight * (value[d] as number);
      }
      read.set(sums, head * size);
      looks.push({ layer, head, to });
    }
    return times(this.part(layer, "self_attn.o_proj"), read);
  }

  // Of model.safetensors, put together again with all its zeros.
  async sha256(): Promise<string> {
    if (globalThis.crypto?.subtle === undefined) return "";
    const header: Record<string, unknown> = { __metadata__: { format: "pt" } };
    const names = Object.keys(this.facts.shapes).sort();
    let size = 0;
    for (const name of names) {
      const shape = this.facts.shapes[name] as number[];
      const bytes = 4 * shape.reduce((product, each) => product * each, 1);
      header[name] = { dtype: "F32", shape, data_offsets: [size, size + bytes] };
      size += bytes;
    }
    const text = new TextEncoder().encode(JSON.stringify(header));
    const start = 8 + 8 * Math.ceil(text.length / 8);
    const whole = new Uint8Array(start + size).fill(32, 8, start);
    new DataView(whole.buffer).setBigUint64(0, BigInt(start - 8), true);
    whole.set(text, 8);
    let at = start / 4;
    const numbers = new Float32Array(whole.buffer);
    for (const name of names) {
      const values = tensor(this.file, `${name}.values`).values;
      this.places(name).forEach((place, k) => (numbers[at + place] = values[k] as number));
      at += (this.facts.shapes[name] as number[]).reduce((product, each) => product * each, 1);
    }
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
    return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }
}

function rows(places: Int32Array, by: Float64Array, shape: number[]): Sparse {
  const [height, width] = shape.length === 1 ? [1, shape[0] as number] : (shape as [number, number]);
  const from = new Int32Array(height + 1);
  for (const place of places) from[Math.floor(place / width) + 1]!++;
  for (let r = 0; r < height; r++) from[r + 1]! += from[r] as number;
  return { from, at: places.map((place) => place % width), by };
}

function times({ from, at, by }: Sparse, vector: Float32Array): Float32Array {
  const out = new Float32Array(from.length - 1);
  for (let r = 0; r < out.length; r++) {
    let sum = 0;
    for (let k = from[r] as number; k < (from[r + 1] as number); k++) sum += (by[k] as number) * (vector[at[k] as number] as number);
    out[r] = sum;
  }
  return out;
}

function add(stream: Float32Array, more: Float32Array): void {
  for (let k = 0; k < stream.length; k++) stream[k]! += more[k] as number;
}
