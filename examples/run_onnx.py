"""An algorithm on your numbers, with onnxruntime and nothing of emulon: interpreter.onnx PROGRAM.safetensors data.csv

The last column of data.csv is the target. `emulon export` writes the two other files.
"""

import json
import sys

import numpy as np
from onnxruntime import InferenceSession
from safetensors import safe_open

session, table = InferenceSession(sys.argv[1]), np.loadtxt(sys.argv[3], delimiter=",", ndmin=2)
with safe_open(sys.argv[2], framework="np") as file:
    program = json.loads(file.metadata()["emulon"])["facts"]
    part = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
x, y = table[:, :-1], table[:, -1:]
# What enters the template: numbers, labels ±1 times their row, or counts; then what every sample adds to the gradient.
data = {"residual": (x, y, 0 * x), "margin": (y * x, 0 * y, 0 * x), "rate": (x, 0 * y, y * x)}[program["link"]]
w = before = np.zeros(x.shape[1])
for _ in range(program["steps"]):
    state = w
    for name in (phase["name"] for phase in program["phases"]):
        grid, maps, asks, codes = (part[f"{name}.{each}"] for each in ("grid", "maps", "asks", "codes"))
        samples = part.get(f"{name}.samples", np.concatenate(data, axis=1))
        rest = np.tile([*state, *before, 1.0], (len(samples), 1))
        u = np.concatenate([samples, codes, rest], axis=1)
        tokens = np.einsum("jc,cfm,nm->njf", grid, maps, u).reshape(-1, len(asks))
        tokens[: len(u)] += u @ asks.T
        head = {weights: part[f"{name}.{weights}"] for weights in ("w_k", "w_q", "w_v")}
        [answers] = session.run(None, {"tokens": tokens, **head, "queries": np.array([len(u)])})
        state = answers.mean(axis=0) @ part[f"{name}.readout"]
    w, before = state, w
print(*map(float, w))
