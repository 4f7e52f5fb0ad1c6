"""What mkdocs calls while it builds the site (see mkdocs.yml): which pages there are, and what is done to each."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from docsite import commands, copies, equations, figures, formulas, reference, repository
from docsite.links import RepositoryLinks, to_equations

log = logging.getLogger("mkdocs.hooks.docsite")  # a warning of a logger below mkdocs fails a strict build
links = RepositoryLinks()
ASSETS = Path(__file__).parent / "docsite" / "assets"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Links to files become links to pages; there is no page for a wrong address, since there is no server."""
    sys.path.insert(0, str(repository.ROOT / "src"))  # the pages are of this tree, whatever else is installed
    config.markdown_extensions.append(links)
    for remembered in (repository.sources, equations.numbers, equations.places):
        remembered.cache_clear()  # `mkdocs serve` builds again and again
    config.theme.static_templates.discard("404.html")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages, each at its path in the repository: written ones, generated ones, copies of the source, pictures and styles."""
    for file in list(files.documentation_pages()) + list(files.media_files()):
        if Path(file.abs_src_path or "").is_relative_to(config.docs_dir):
            files.remove(file)  # mkdocs sees docs/ as the root of the site; it comes back below its name
    for path in (*repository.documents(), *repository.pictures()):
        files.append(File.generated(config, path, abs_src_path=str(repository.ROOT / path)))
    for asset in sorted(ASSETS.iterdir()):
        files.append(File.generated(config, f"assets/{asset.name}", abs_src_path=str(asset)))
    files.append(File.generated(config, repository.COMMANDS, content=commands.page()))
    files.append(File.generated(config, repository.REFERENCE, content=reference.page()))
    sources = repository.sources()
    files.append(File.generated(config, repository.FILES, content=copies.listing(sources), inclusion=InclusionLevel.NOT_IN_NAV))
    for path in sources:
        files.append(File.generated(config, copies.page_of(path), content=copies.top(path), inclusion=InclusionLevel.NOT_IN_NAV))
    config.nav = repository.navigation()
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Each equation gets its anchor and its code."""
    links.page = page.file.src_uri
    return equations.with_code(markdown) if page.file.src_uri == repository.EQUATIONS else markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Pictures can be enlarged, formulas are drawn, mentions of equations become links, and the page of a source file gets its code."""
    name = page.file.src_uri
    if name.removesuffix(".md") in repository.sources():
        code = copies.code(name.removesuffix(".md"))  # here, since Markdown would take long to read through it
        page.present_anchor_ids = (page.present_anchor_ids or set()) | {f"L{n}" for n in range(1, len(code) + 1)}
        return f'{html}\n<div class="highlight source"><pre><code>{"".join(code)}</code></pre></div>'
    linked, unknown = to_equations(formulas.render(figures.enlargeable(html, name)), name)
    for number in unknown:
        log.warning(f"{name} mentions {number}, which {repository.EQUATIONS} does not have.")
    return linked
