"""JSON documents as frozen values: read and checked by their type hints, written by their fields. No torch."""

from __future__ import annotations

import math
import reprlib
import types
import typing
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

from ..errors import BadRun, HeadcountError
from ..stats.results import Comparison

# what the metadata of a dataclass's field can say beside {"key": ...}, the key that JSON has where it is another one
FLAT = {"flat": True}  # the keys of its value stand among those of the value around it
SOMETIMES = {"sometimes": True}  # JSON has it only where it differs from its default
OF_CLASS = {str: "a text", bool: "true or false", int: "a whole number", float: "a finite number"}


@dataclass(frozen=True, kw_only=True)
class JsonDocument:
    """A JSON document of a run folder: its fields are the keys of the file `NAME`.json."""

    NAME: ClassVar[str]

    @classmethod
    def from_json(cls, data: object, file: str = "") -> Self:
        """The document in `data`, or `BadRun` with the first key of the file that is missing or of the wrong type."""
        try:
            document: Self = read(cls, data)
        except Wrong as error:
            raise BadRun(
                f"{file or f'{cls.NAME}.json'} is not what headcount writes ({error}); run its command again in a new folder."
            ) from None
        return document

    def to_json(self) -> dict[str, Any]:
        """The document as JSON has it."""
        return dict(write(self))


class Wrong(Exception):
    """What is wrong with a JSON value, after the key that it stands under."""


def read(kind: Any, value: object, key: str = "") -> Any:
    """A JSON value as a type: one of JSON's own, a tuple, a mapping, or a dataclass or named tuple of them."""
    if kind is Any:
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(inner, value, key)
    if origin is tuple:
        return _tuple(inner, value, key)
    if origin is dict:
        items = _checked(dict, value, key, "an object").items()
        return {str(name): read(inner[1], content, _under(key, str(name))) for name, content in items}
    if hasattr(kind, "from_json") and not issubclass(kind, JsonDocument):
        return _by_itself(kind, value, key)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _fields(kind, _checked(dict, value, key, "an object"), key)
    if kind is float:
        number = _checked((int, float), value, key, OF_CLASS[float])
        if not math.isfinite(number):
            raise Wrong(f"{key} is {number}, and should be a finite number")
        return number
    return _checked(kind, value, key, OF_CLASS.get(kind, "null"))


def write(value: Any) -> Any:
    """A value as JSON has it, as `read` reads it."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, tuple | list):
        return [write(entry) for entry in value]
    if isinstance(value, dict):
        return {name: write(entry) for name, entry in value.items()}
    if hasattr(value, "to_json") and not isinstance(value, JsonDocument):
        return value.to_json()
    if not is_dataclass(value):
        return value
    out: dict[str, Any] = {}
    for field in fields(value):
        content = getattr(value, field.name)
        if field.metadata.get("sometimes") and content == field.default:
            continue
        if field.metadata.get("flat"):
            out |= write(content)
        else:
            out[field.metadata.get("key") or field.name] = write(content)
    return out


class _Key(NamedTuple):
    """A field, and how JSON has it."""

    field: str
    key: str
    hint: Any
    flat: bool
    required: bool


@cache
def _keys(kind: Any) -> list[_Key]:
    hints = typing.get_type_hints(kind)
    if not is_dataclass(kind):  # a named tuple
        return [_Key(name, name, hints[name], False, name not in kind._field_defaults) for name in kind._fields]
    out = []
    for field in fields(kind):
        required = field.default is MISSING and field.default_factory is MISSING
        key = field.metadata.get("key") or field.name
        out.append(_Key(field.name, key, hints[field.name], field.metadata.get("flat", False), required))
    return out


def _fields(kind: Any, data: dict[str, Any], key: str) -> Any:
    values = {}  # what may be missing may be null as well: both read as the default
    for field_key in _keys(kind):
        if field_key.flat:
            values[field_key.field] = read(field_key.hint, data, key)
        elif field_key.required and field_key.key not in data:
            raise Wrong(f"{_under(key, field_key.key)} is missing")
        elif field_key.required or data.get(field_key.key) is not None:
            values[field_key.field] = read(field_key.hint, data[field_key.key], _under(key, field_key.key))
    try:
        return kind(**values)
    except ValueError as error:
        raise Wrong(f"{key}: {error}" if key else str(error)) from None


def _by_itself(kind: Any, value: object, key: str) -> Any:
    """A value of a class that reads itself; keys that it does not know are passed over."""
    if kind is Comparison and isinstance(value, dict):
        field_names = {field.name for field in fields(kind)}
        value = {name: content for name, content in value.items() if name in field_names}
    try:
        return kind.from_json(value)
    except HeadcountError as error:
        message = str(error).rstrip(".")
        raise Wrong(f"{key}: {message}" if key else message) from None


def _one_of(kinds: tuple[Any, ...], value: object, key: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    value_kinds = [kind for kind in kinds if kind is not type(None)]
    for kind in value_kinds[:-1]:
        try:
            return read(kind, value, key)
        except Wrong:
            continue
    return read(value_kinds[-1], value, key)


def _tuple(inner: tuple[Any, ...], value: object, key: str) -> tuple[Any, ...]:
    values = _checked(list, value, key, "a list")
    if inner[-1] is Ellipsis:
        return tuple([read(inner[0], entry, f"{key}[{n}]") for n, entry in enumerate(values)])
    if len(values) != len(inner):
        raise Wrong(f"{key} has {len(values)} values, and should have {len(inner)}")
    return tuple(read(kind, entry, f"{key}[{n}]") for n, (kind, entry) in enumerate(zip(inner, values, strict=True)))


def _checked(kind: Any, value: Any, key: str, words: str) -> Any:
    right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not right:
        raise Wrong(f"{key or 'it'} is {reprlib.repr(value)}, and should be {words}")
    return value


def _under(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
