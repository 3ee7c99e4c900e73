"""What the code of a module class says: the names it uses and its text, `__init__` left out. Nothing is executed."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from types import FunctionType

from torch import nn


@cache
def names_used(kind: type) -> frozenset[str]:
    """The global names and attributes that the methods of a class use."""
    return frozenset(name for function in _methods(kind) for name in function.__code__.co_names)


@cache
def text(kind: type, *beginnings: str) -> str:
    """The source of the methods of a class (whose names begin so); empty where there is none to read."""
    return "\n".join(_texts(kind, beginnings))


def _texts(kind: type, beginnings: tuple[str, ...] = ()) -> Iterator[str]:
    for function in _methods(kind):
        if not beginnings or function.__name__.startswith(beginnings):
            yield _text(function)


@cache
def _text(function: FunctionType) -> str:
    """The source of one function, read once: hundreds of classes inherit the same methods."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def _methods(kind: type) -> Iterator[FunctionType]:
    for base in kind.__mro__:
        if base is nn.Module:
            return
        if base.__module__.startswith("torch.distributed"):  # what FSDP puts before a class
            continue
        for name, value in vars(base).items():
            function = inspect.unwrap(value) if callable(value) else value
            if name != "__init__" and inspect.isfunction(function):
                yield function


@cache
def layer_number_used(kind: type, container: str) -> str | None:
    """The loop variable by which a class uses the numbers of the layers in `self.<container>`, or None if it does not.

    Picking a layer's own entry from a cache, or from a list in the config, is no use: these are kept true by a cut.
    """
    functions = [node for node in ast.walk(_parsed(kind)) if isinstance(node, ast.FunctionDef)]
    main = [f for f in functions if f.name.startswith("forward") and "intermediate" not in f.name]
    for function in main or functions:
        for loop in ast.walk(function):
            if isinstance(loop, ast.For) and (index := _number_of(loop, container)) is not None:
                body = ast.Module(loop.body, [])
                harmless = {id(name) for node in ast.walk(body) for name in _own_entry(node, container)}
                names = [node for node in ast.walk(body) if isinstance(node, ast.Name) and node.id == index]
                if any(id(name) not in harmless for name in names):
                    return index
    return None


def _number_of(loop: ast.For, container: str) -> str | None:
    """The variable that counts layers in this loop: `for i, layer in enumerate(self.layers)`, `for i in range(...)`."""
    header = ast.unparse(loop.iter)
    if header.startswith("enumerate(") and isinstance(loop.target, ast.Tuple) and f"self.{container}" in header:
        first = loop.target.elts[0]
        return first.id if isinstance(first, ast.Name) else None
    over = any(f"self.{container}[" in ast.unparse(node) for node in ast.walk(ast.Module(loop.body, [])))
    return loop.target.id if header.startswith("range(") and over and isinstance(loop.target, ast.Name) else None


def _own_entry(node: ast.AST, container: str) -> list[ast.AST]:
    """The names inside `past_key_values[i]`, `config.layer_types[i]` or `self.layers[i]`."""
    if not isinstance(node, ast.Subscript):
        return []
    owner = ast.unparse(node.value)
    listed = ("past" in owner or "config." in owner or "head_mask" in owner) and "hidden" not in owner
    return list(ast.walk(node.slice)) if listed or owner == f"self.{container}" else []


@cache
def streams(kind: type) -> int:
    """How many of the arguments of a layer's `forward` it returns, changed, for the next layer."""
    most = 0
    for function in ast.walk(_parsed(kind)):
        if isinstance(function, ast.FunctionDef) and function.name == "forward":
            arguments = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                    names = [e.id for e in node.value.elts if isinstance(e, ast.Name) and e.id in arguments]
                    most = max(
                        most, sum(not re.search("bias|mask|past|cache|weights|attention|logits", n) for n in names)
                    )
    return most


@cache
def _parsed(kind: type) -> ast.Module:
    return ast.Module([node for function in _methods(kind) for node in _tree(function)], [])


@cache
def _tree(function: FunctionType) -> list[ast.stmt]:
    try:
        return ast.parse(textwrap.dedent(_text(function))).body
    except SyntaxError:  # a method whose text cannot stand alone, as a lambda in the middle of an expression
        return []
