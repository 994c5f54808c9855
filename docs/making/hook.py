"""What mkdocs asks while it builds: pages that are made, not written, and numbers read from results/.

A page has `<!-- numbers: CLAIM -->`, `<!-- picture: NAME -->`, `<!-- claims -->`, `<!-- records -->`,
`<!-- benchmark -->`, `<!-- performance: PART -->`, `<!-- canaries -->`, `<!-- llama -->`, `<!-- words -->`,
`<!-- verdict: CLAIM -->` or `<!-- errors -->` where something belongs that nobody should type.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fragments
import notebooks
import pictures
import timings
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from offline import fetched

from emulon.playground import single_page

ROOT = Path(__file__).parents[2]
COPIED = {"CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "adding.md"}
KINDS = "numbers|verdict|picture|claims|records|benchmark|performance|canaries|llama|words|errors"
MARK = re.compile(rf"<!-- ({KINDS})(?:: ([\w.-]+))? -->")


def on_files(files: Any, config: Any) -> Any:
    """Adds the figures of the claims, the playground, the reference's pages, and those that stand outside docs/."""
    for figure in sorted((ROOT / "results" / "claims").glob("*.svg")):
        files.append(File.generated(config, f"figures/{figure.name}", abs_src_path=str(figure)))
    # As one file: a browser does not let a page from the file system read what lies beside it.
    files.append(File.generated(config, "playground/index.html", content=single_page()))
    for source, page in COPIED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for script in notebooks.scripts():
        files.append(File.generated(config, f"tutorials/{script.stem}.md", content=notebooks.as_page(script)))
    for name in fragments.PACKAGES:
        files.append(File.generated(config, f"reference/{name}.md", content=fragments.reference(name)))
    files.append(File.generated(config, "reference/index.md", content=fragments.packages()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts numbers and pictures where the page asks for them."""
    up = "../" * page.file.src_uri.count("/")

    def made(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "picture":
            return pictures.named(name)
        if kind == "verdict":
            return fragments.verdict(name)
        if kind == "performance":
            return timings.part(name)
        if kind == "numbers":
            return fragments.numbers(name, up)
        return str(getattr(fragments, kind)(up))

    return MARK.sub(made, markdown)


def on_post_build(config: Any) -> None:
    """Refuses a site whose pages fetch something from elsewhere."""
    found = fetched(Path(config.site_dir))
    if found:
        raise PluginError("pages fetch from elsewhere: " + "; ".join(found[:5]))
