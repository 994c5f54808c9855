"""The playground: one frozen transformer in the browser, running whatever its prompt says.

The page is TypeScript (playground/ in the repository) and comes built, in `static/`, with the models and programs that
it plays with, in `static/data/`. `programs`: the prompts to choose from. `data`: writes those files. `server`: serves.
"""
