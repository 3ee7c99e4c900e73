"""The pages of the API reference, written while mkdocs builds the site: one for each package that has public names.

What is public is read off the source: what `headcount/__init__.py`, and the `__init__.py` of each package, import from their own
modules and list in `__all__`. Names that move or are renamed there move on the pages too. A hook of mkdocs (see `mkdocs.yml`); it
needs no torch.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src" / "headcount"
INDEX = "api/README.md"
TABLES = "<!-- names -->"  # where the tables of names go on the first page of the reference


@dataclass(frozen=True)
class Name:
    """A public name: how it is written in a program, and the module that defines it."""

    shown: str  # `hc.cut`, or `hc.stats.Result` if only its package gives it out
    module: str  # `headcount.model.cutting.surgery`
    own: str  # what that module calls it

    @property
    def path(self) -> str:
        """The place where it is defined, which is its anchor on the pages."""
        return f"{self.module}.{self.own}"

    @property
    def page(self) -> str:
        """The page that it is on: the package, or the module where it is in none."""
        return self.module.split(".")[1]


def public_names(source: Path = SOURCE) -> list[Name]:
    """All public names, each once, under the shortest way to write it."""
    found: dict[str, Name] = {}
    for init in sorted(source.rglob("__init__.py"), key=lambda path: (len(path.parts), path)):
        package = [source.name, *init.parent.relative_to(source).parts]
        for name in _given_out(_tree(init), package):
            found.setdefault(name.path, name)
    return [name for name in found.values() if _file(source, name.module).is_file()]


def _given_out(tree: ast.Module, package: list[str]) -> list[Name]:
    """What one `__init__.py` imports from modules of the package and lists in `__all__`, in the order of the imports."""
    listed = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets)
    ]
    if not listed:
        return []
    literal = isinstance(listed[0], ast.List | ast.Tuple)  # else it is computed from what is imported: all of it
    public = set(ast.literal_eval(listed[0])) if literal else None
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            home = ".".join([*package[: len(package) - node.level + 1], node.module])
            for alias in node.names:
                called = alias.asname or alias.name
                if public is None or called in public:
                    names.append(Name(".".join(["hc", *package[1:], called]), home, alias.name))
    return names


def _file(source: Path, module: str) -> Path:
    """The file of a module or a package."""
    path = source.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _tree(file: Path) -> ast.Module:
    """A parsed file; read again only when it has changed, for `mkdocs serve` builds many times."""
    return _parsed(file, file.stat().st_mtime_ns)


@cache
def _parsed(file: Path, changed: int) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _docstring(node: ast.AST) -> str:
    return ast.get_docstring(node) or ""  # type: ignore[arg-type]


def _definition(name: Name, source: Path) -> ast.stmt | None:
    """The class or function of that name, after its overloads; None for what is assigned."""
    tree = _tree(_file(source, name.module))
    return next((node for node in reversed(tree.body) if getattr(node, "name", None) == name.own), None)


def _line(name: Name, source: Path) -> int:
    """Where in its module a name is defined: pages keep the order of the source."""
    node = _definition(name, source)
    return node.lineno if node else 0


def _first_lines(name: Name, source: Path) -> str:
    """The first paragraph of a docstring, on one line, as a cell of a table holds it."""
    node = _definition(name, source)
    first = _docstring(node).split("\n\n")[0] if node else ""
    return " ".join(first.split()).replace("|", "\\|")


def pages(source: Path = SOURCE) -> dict[str, str]:
    """Path of a page -> its text: the package's own sentence, then its modules with their public names."""
    grouped: dict[str, dict[str, list[Name]]] = {}
    for name in public_names(source):
        grouped.setdefault(name.page, {}).setdefault(name.module, []).append(name)
    return {f"api/{page}.md": _page(page, grouped[page], source) for page in sorted(grouped)}


def _page(page: str, modules: dict[str, list[Name]], source: Path) -> str:
    package = f"{source.name}.{page}"
    parts = [f"# {package}"]
    if package not in modules:
        parts.append(_docstring(_tree(_file(source, package))))
    for module, given in modules.items():
        names = sorted(given, key=lambda name: _line(name, source))
        members = "".join(f"\n        - {name.own}" for name in names)
        whole = "" if module != package else "\n      show_root_heading: false\n      heading_level: 2"
        parts.append(f"::: {module}\n    options:{whole}\n      members:{members}")
    return "\n\n".join(part for part in parts if part) + "\n"


def tables(source: Path = SOURCE) -> str:
    """The functions of the top level in one table, then a table for each page: how a name is written, and what it is."""
    names = public_names(source)
    verbs = [name for name in names if name.shown.count(".") == 1 and name.own.islower()]
    parts = ["## Functions of the top level", _table(verbs, source)]
    for path in pages(source):
        page = Path(path).stem
        parts += [
            f"## [{source.name}.{page}]({page}.md)",
            _table([name for name in names if name.page == page], source),
        ]
    return "\n\n".join(parts)


def _table(names: list[Name], source: Path) -> str:
    rows = [f"| [`{name.shown}`][{name.path}] | {_first_lines(name, source)} |" for name in names]
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


# What mkdocs calls.


def on_config(config: Any) -> Any:
    """Put the pages below the first page of the reference in the navigation."""
    for section in config.nav or []:
        for title, items in section.items():
            if isinstance(items, list) and INDEX in items:
                section[title] = [*items, *({Path(path).stem: path} for path in pages())]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those that are in the folder."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write the tables of names into the first page of the reference."""
    return markdown.replace(TABLES, tables()) if page.file.src_uri == INDEX else markdown
