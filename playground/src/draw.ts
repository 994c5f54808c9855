// A page in plain elements: makers of HTML and SVG, scales, pictures of matrices.

type Value = string | number | boolean | ((event: never) => void);
type Child = Node | string;

function fill<E extends Element>(element: E, attributes: Record<string, Value>, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value as unknown as EventListener);
    else if (value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

export function html<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Record<string, Value> = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), attributes, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K, attributes: Record<string, Value> = {}, ...children: Child[]
): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// Drawn, because not every font has these signs.
const ICONS: Record<string, string> = {
  play: "M4 2.5v11l9-5.5z", pause: "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z", rewind: "M2.5 2.5h2v11h-2zM13.5 2.5v11L5.5 8z",
  back: "M11 2.5v11L3.5 8z", next: "M5 2.5v11L12.5 8z",
};

export function icon(name: string): SVGSVGElement {
  return svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] ?? "" }));
}

export function button(label: string | SVGElement, does: () => void, attributes: Record<string, Value> = {}): HTMLButtonElement {
  return html("button", { type: "button", click: does, ...attributes }, label);
}

// One of several, as radio buttons that look like pills: arrow keys come with them.
export function choice(
  legend: string, name: string, options: { value: string; label: string; title?: string }[], chosen: string,
  pick: (value: string) => void,
): HTMLFieldSetElement {
  const pills = options.map(({ value, label, title }) =>
    html("label", { class: "pill", ...(title === undefined ? {} : { title }) },
      html("input", { type: "radio", name, value, ...(value === chosen ? { checked: true } : {}), change: () => pick(value) }),
      html("span", {}, label)),
  );
  return html("fieldset", { class: "pills" }, html("legend", {}, legend), ...pills);
}

export type Scale = (value: number) => number;

export function linear(from: readonly [number, number], to: readonly [number, number]): Scale {
  const factor = (to[1] - to[0]) / (from[1] - from[0]);
  return (value) => to[0] + (value - from[0]) * factor;
}

export function logarithmic(from: readonly [number, number], to: readonly [number, number]): Scale {
  const inner = linear([Math.log10(from[0]), Math.log10(from[1])], to);
  return (value) => inner(Math.log10(Math.min(Math.max(value, from[0]), from[1])));
}

export function path(points: readonly (readonly [number, number])[]): string {
  return points.map(([x, y], i) => `${i === 0 ? "M" : "L"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");
}

export function short(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e4 ? String(Number(value.toPrecision(4))) : value.toExponential(1);
}

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

export function tenTo(power: number): string {
  return `10${power < 0 ? "⁻" : ""}${[...String(Math.abs(power))].map((digit) => SUPERSCRIPTS[Number(digit)]).join("")}`;
}

export function scientific(value: number): string {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return "none";
  const [head, power] = value.toExponential(1).split("e") as [string, string];
  return Math.abs(Number(power)) <= 2 ? String(Number(value.toPrecision(2))) : `${head}·${tenTo(Number(power))}`;
}

// A bound in two digits, rounded up: what is shown is still one.
export function atMost(bound: number): string {
  if (!Number.isFinite(bound) || bound === 0) return scientific(bound);
  const unit = 10 ** (Math.floor(Math.log10(bound)) - 1);
  return `≤ ${scientific(Math.ceil((bound / unit) * (1 - 1e-12)) * unit)}`;
}

// A colour as numbers, from a custom property of the page, so that pictures follow light and dark.
export function colour(name: string): [number, number, number] {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const parts = /^#(..)(..)(..)$/.exec(text);
  return parts === null ? [128, 128, 128] : [1, 2, 3].map((k) => parseInt(parts[k] as string, 16)) as [number, number, number];
}

// A matrix as a picture, a pixel an entry: `tint` gives −1 … 1, towards one end colour or the other.
export function paint(canvas: HTMLCanvasElement, rows: number, columns: number, tint: (r: number, c: number) => number): void {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const image = context.createImageData(columns, rows);
  const [ground, above, below] = [colour("--cell"), colour("--hot"), colour("--cold")];
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const part = Math.max(-1, Math.min(1, tint(r, c)));
      const end = part < 0 ? below : above;
      const at = 4 * (r * columns + c);
      for (let k = 0; k < 3; k++) {
        image.data[at + k] = (ground[k] as number) + Math.abs(part) * ((end[k] as number) - (ground[k] as number));
      }
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

// Two numbers as they are printed, and how many characters they share from the left.
export function digits(own: number, other: number): { text: string; same: number } {
  const print = (value: number): string => (value <= -5e-16 ? "−" : " ") + Math.abs(value).toFixed(15);
  const [text, beside] = [print(own), print(other)];
  let same = 0;
  while (same < text.length && text[same] === beside[same]) same++;
  return { text, same };
}

export const still = (): boolean => matchMedia("(prefers-reduced-motion: reduce)").matches;
