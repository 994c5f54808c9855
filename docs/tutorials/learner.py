# %% [markdown]
# # Train a learner and watch its algorithm change
#
# A small transformer is trained on in-context linear regression, and `identify` asks every checkpoint which algorithm it runs:
# at first none, at the end ridge regression. Five minutes, of which training takes half a minute on one core.

# %%
# %pip install -q emulon

# %% [markdown]
# ## Train
#
# Each dataset has a weight of its own and a little noise. The learner sees x₁, y₁, x₂, … and answers at every x. It is never
# told of an algorithm.

# %%
from pathlib import Path

from emulon.tasks import Linear
from emulon.training import TrainConfig, train

task = Linear(features=1, noise=0.3)
config = TrainConfig.of(
    features=1,
    points=5,
    noise=0.3,
    model="standard",
    width=16,
    layers=2,
    heads=2,
    init=0.15,
    steps=900,
    lr=0.004,
    warmup=30,
    schedule="linear",
    checkpoint_every=300,
    keep_checkpoints=0,  # all of them
    quiet=True,
    device="cpu",
)
trained = train(config, Path("runs/linear"))

# %% [markdown]
# ## Ask every checkpoint
#
# `over_training` identifies the learner at each, on the same fresh datasets.

# %%
from emulon.identification import over_training

phases = over_training(Path("runs/linear"), task, datasets=64)
print([phase.identification.algorithm for phase in phases])

# %% [markdown]
# ```output
# ['none of these', 'none of these', 'ridge']
# ```

# %% [markdown]
# What the nearest references leave unexplained, of the learner's variance:

# %%
import pandas

columns = {phase.place: phase.identification.to_frame()["unexplained"] for phase in phases}
table = pandas.DataFrame(columns).loc[["ridge", "gradient descent", "ols", "mean target"]]
print(table.round(3).to_string())

# %% [markdown]
# When it was run for this page it was so; your last digits will differ, as training amplifies rounding:
#
# ```text
#                     300    600    900
# reference
# ridge             0.109  0.090  0.023
# gradient descent  0.097  0.059  0.030
# ols               0.879  0.632  0.561
# mean target       2.391  2.205  2.146
# ```
#
# Least squares stays far: with noise, shrinkage is what training rewards. The Bayes predictor of this task is ridge regression
# with λ = σ²/τ² = 0.09; the learner ends at λ = 0.13. A few steps of gradient descent shrink in nearly the same way.

# %% [markdown]
# ## What else can be asked
#
# `identify` takes anything that predicts: functions and estimators, too. After at most three examples the mean is also that of
# the three nearest neighbours, which `ties` says: the one with the fewest parameters is named.

# %%
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from emulon.identification import identify


def mean_of_targets(xs, ys, x_query):
    return ys.mean(dim=-1)


print(identify(mean_of_targets, task, counts=[1, 2, 3], datasets=64).nearest)
for estimator in (Ridge(alpha=1.0), KernelRidge(alpha=0.5, kernel="rbf")):
    print(identify(estimator, Linear(3), datasets=16, points=8).nearest)

# %% [markdown]
# ```output
# mean target
# ridge with intercept(ridge=1)
# kernel ridge(width=0, ridge=0.5)
# ```

# %% [markdown]
# What a learner made of a finite set of tasks, whether it knows them by heart or fits every dataset anew, is asked on such a set:

# %%
from emulon.algorithms import TaskMixture
from emulon.tasks import TaskSet

few = TaskSet(features=3, noise=0.3, tasks=8)
print(identify(TaskMixture(few.vectors, noise=0.3), few, datasets=16, points=8).nearest)

# %% [markdown]
# ```output
# task mixture(noise=0.3)
# ```

# %% [markdown]
# The same from the command line, and with a page of figures:
#
# <!-- not run: it trains for about a minute -->
# ```bash
# emulon train standard --task linear --features 3 --points 9 --noise 0.3 --width 32 --layers 3 --heads 4 --init 0.1 --steps 2500 --lr 0.003 --warmup 100 --schedule cosine --keep-checkpoints 0 --checkpoint-every 250 --out runs/minute
# emulon identify runs/minute --checkpoints --report page
# ```
#
# Next: [your own model](own_model.md), or [the claims](../claims.md#learning-figure-1) for learners at the size of the paper.
