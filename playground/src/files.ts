// Reads what Python wrote: safetensors, and of ONNX files the weights and the metadata.

export interface Tensor {
  readonly shape: number[];
  readonly values: Float64Array;
}

export interface TensorFile {
  readonly tensors: Map<string, Tensor>;
  readonly facts: Map<string, string>;
}

const text = new TextDecoder();

// A page that is one file has in it, as base64, what others fetch.
const inside = (globalThis as { emulonFiles?: Record<string, string> }).emulonFiles ?? {};

export async function fetchBytes(path: string): Promise<Uint8Array> {
  const kept = inside[path];
  if (kept !== undefined) return Uint8Array.from(atob(kept), (letter) => letter.charCodeAt(0));
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}

export async function unzipped(bytes: Uint8Array): Promise<Uint8Array> {
  const stream = new Blob([bytes.slice()]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// A copy, because a view must begin at a multiple of its size; every number a double from here on.
function numbers(bytes: Uint8Array, kind: Kind): Float64Array {
  const own = bytes.slice().buffer;
  return kind === "F64" ? new Float64Array(own) : Float64Array.from(kind === "F32" ? new Float32Array(own) : new Int32Array(own));
}

type Kind = "F64" | "F32" | "I32";

interface Entry {
  dtype: Kind;
  shape: number[];
  data_offsets: [number, number];
}

export function readSafetensors(bytes: Uint8Array): TensorFile {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(text.decode(bytes.subarray(8, 8 + length))) as Record<string, unknown>;
  const tensors = new Map<string, Tensor>();
  for (const [name, part] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const entry = part as Entry;
    const [start, stop] = entry.data_offsets;
    const values = numbers(bytes.subarray(8 + length + start, 8 + length + stop), entry.dtype);
    tensors.set(name, { shape: entry.shape, values });
  }
  return { tensors, facts: new Map(Object.entries((header.__metadata__ ?? {}) as Record<string, string>)) };
}

// Protocol buffers: a field is a key (number · 8 + wire type), then a varint, or a length and that many bytes.
function* fields(bytes: Uint8Array): Generator<{ field: number; value: number; bytes: Uint8Array }> {
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++] as number;
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = varint();
    const wire = key & 7;
    const size = wire === 2 ? varint() : wire === 5 ? 4 : wire === 1 ? 8 : 0;
    const value = wire === 0 ? varint() : 0;
    yield { field: key >> 3, value, bytes: bytes.subarray(at, at + size) };
    at += size;
  }
}

function readOnnxTensor(bytes: Uint8Array): [string, Tensor] | null {
  const shape: number[] = [];
  let kind = 0;
  let name = "";
  let raw = new Uint8Array(0);
  for (const each of fields(bytes)) {
    if (each.field === 1) {
      // Sizes come one by one, or packed into one field.
      if (each.bytes.length === 0) shape.push(each.value);
      else for (let at = 0; at < each.bytes.length; ) {
        let value = 0;
        for (let scale = 1; ; scale *= 128) {
          const byte = each.bytes[at++] as number;
          value += (byte & 127) * scale;
          if (byte < 128) break;
        }
        shape.push(value);
      }
    } else if (each.field === 2) kind = each.value;
    else if (each.field === 8) name = text.decode(each.bytes);
    else if (each.field === 9) raw = each.bytes.slice();
  }
  const types: Record<number, "F32" | "F64"> = { 1: "F32", 11: "F64" };
  const type = types[kind];
  return type === undefined ? null : [name, { shape, values: numbers(raw, type) }];
}

export function readOnnx(bytes: Uint8Array): TensorFile {
  const tensors = new Map<string, Tensor>();
  const facts = new Map<string, string>();
  for (const part of fields(bytes)) {
    if (part.field === 7) {
      for (const each of fields(part.bytes)) {
        const found = each.field === 5 ? readOnnxTensor(each.bytes) : null;
        if (found !== null) tensors.set(found[0], found[1]);
      }
    } else if (part.field === 14) {
      const words = [...fields(part.bytes)].map((each) => text.decode(each.bytes));
      facts.set(words[0] ?? "", words[1] ?? "");
    }
  }
  return { tensors, facts };
}

export function tensor(file: TensorFile, name: string): Tensor {
  const found = file.tensors.get(name);
  if (found === undefined) throw new Error(`there is no tensor ${name}`);
  return found;
}
