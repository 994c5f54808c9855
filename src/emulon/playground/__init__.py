"""The playground: one frozen transformer in the browser, running whatever its prompt says.

The page is TypeScript and comes built, in `static/`, with the models and programs it plays with, in `static/data/`;
playground/ in the repository makes both. `runs`: a run of `emulon run` as its address. `server`: serves.
"""
