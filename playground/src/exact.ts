// The exact algorithm beside the transformer: gradient descent in plain doubles, no attention in it.

import type { Facts, Sample } from "./program";

// ℓ′ by the loss's name; a parameter stands in brackets behind it.
const DERIVATIVES: Record<string, (t: number, parameter: number) => number> = {
  squared: (t) => t,
  huber: (t, delta) => Math.max(-delta, Math.min(delta, t)),
  log_cosh: (t) => Math.tanh(t),
  quantile: (t, tau) => (t > 0 ? 1 - tau : t < 0 ? -tau : 0.5 - tau),
  poisson: (t) => Math.exp(t),
  logistic: (t) => -1 / (1 + Math.exp(t)),
  squared_hinge: (t) => -2 * Math.max(0, 1 - t),
  perceptron: (t) => (t <= 0 ? -1 : 0),
};

export function derivative(loss: string): (t: number) => number {
  const [, name, parameter] = /^(\w+)(?:\((.*)\))?$/.exec(loss) ?? [];
  const found = DERIVATIVES[name ?? ""];
  if (found === undefined) throw new Error(`there is no loss ${loss} here`);
  return (t) => found(t, Number(parameter ?? 0));
}

export function residuals(data: readonly Sample[], w: readonly number[]): number[] {
  return data.map(({ x, y }) => x.reduce((sum, each, k) => sum + each * (w[k] as number), 0) - y);
}

export function descend(
  facts: Facts, data: readonly Sample[], w: readonly number[], before: readonly number[],
): number[] {
  const slope = derivative(facts.loss);
  const slopes = residuals(data, w).map(slope);
  const { step_size: eta, l1, l2, momentum } = facts;
  return w.map((own, k) => {
    const gradient =
      data.reduce((sum, { x, fixed }, i) => sum + (slopes[i] as number) * (x[k] as number) - (fixed[k] as number), 0) /
      data.length;
    const moved = (1 - eta * l2) * own - eta * gradient + momentum * (own - (before[k] as number));
    return l1 === 0 ? moved : Math.sign(moved) * Math.max(0, Math.abs(moved) - eta * l1);
  });
}
