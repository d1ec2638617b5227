"""Parts that can be had by name: those built in, those registered by a decorator, those of entry points.

A package adds one by `[project.entry-points."siglum.encoders"]`, a script by `@ENCODERS.register("mine")`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from siglum.types import SiglumError, one_of, shown

T = TypeVar("T")


class Registry(Generic[T]):
    """Parts of one kind by name; what is built in is imported when it is asked for.

    >>> tools: Registry[type] = Registry("tool", {"fraction": "fractions:Fraction"})
    >>> tools["fraction"].__name__
    'Fraction'
    """

    def __init__(self, kind: str, built_in: Mapping[str, str] | None = None) -> None:
        """Begin with what is built in, each as "module:attribute"; `kind` also names the entry points' group."""
        self.kind, self._built_in, self._own = kind, dict(built_in or {}), dict[str, T]()

    def register(self, name: str) -> Callable[[Any], Any]:
        """Return a decorator that registers what it decorates; another one of that name is refused."""

        def add(part: Any) -> Any:
            known = self._own.get(name)
            if name in self._built_in or (known is not None and getattr(known, "__qualname__", 0) != part.__qualname__):
                raise SiglumError(f"there is a {self.kind} {name!r} already; choose another name.")
            self._own[name] = part
            return part

        return add

    def forget(self, name: str) -> None:
        """Take out what was registered by a decorator."""
        self._own.pop(name, None)

    def names(self) -> list[str]:
        """Return all names that are known now."""
        return list(dict.fromkeys([*self._built_in, *self._own, *(point.name for point in self._points())]))

    def __contains__(self, name: object) -> bool:
        # Entry points are looked up last: that reads the records of all installed packages.
        return name in self._built_in or name in self._own or name in self.names()

    def checked(self, setting: str, name: Any) -> str:
        """Return the value of a setting if it is a known name, else raise and name those there are."""
        known = isinstance(name, str) and name in self
        return one_of(setting, name, [name] if known else self.names())

    def __getitem__(self, name: str) -> T:
        """Return the part of this name, importing what holds it; an unknown name is refused with those there are."""
        if name in self._own:
            return self._own[name]
        where = self._built_in.get(name)
        if where is not None:
            module, _, attribute = where.partition(":")
            return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
        for point in self._points():
            if point.name == name:
                return point.load()  # type: ignore[no-any-return]
        raise SiglumError(f"there is no {self.kind} {shown(name)}; there are {', '.join(self.names())}.")

    def _points(self) -> Any:
        return entry_points(group=f"siglum.{self.kind}s")


ENCODERS: Registry[Callable[..., Any]] = Registry(
    "encoder",
    {
        name: f"siglum.encode.{module}:build"
        for name, module in {
            "builtin": "builtin",
            "minilm": "minilm",
            "efficientnet-lite0": "efficientnet",
            "efficientnet-lite2": "efficientnet",
            "efficientnet-lite0-torch": "efficientnet",
            "efficientnet-lite2-torch": "efficientnet",
            "sentence": "sentence",
            "clip": "clip",
            "openclip": "openclip",
            "siglip2": "siglip",
            "uniir-clip-sf": "uniir_clip",
            "uniir-blip-ff": "uniir_blip",
            "llm2clip": "llm2clip",
        }.items()
    },
)
"""What makes an encoder: `build(model, *, device, precision, batch_size)`; see `siglum.encode.base:Encoder`."""
QUANTISERS: Registry[Callable[..., Any]] = Registry(
    "quantiser",
    {
        "residual": "siglum.tokenize.rq:ResidualQuantizer",
        "product": "siglum.tokenize.pq:ProductQuantizer",
        "rqvae": "siglum.tokenize.rqvae:RqVae",
    },
)
"""Values of `tokenizer.kind`: subclasses of `siglum.tokenize.base:Quantiser`."""
SCORERS: Registry[Callable[..., Any]] = Registry(
    "scorer", {name: f"siglum.search.scorers:build_{name}" for name in ("fused", "decoder", "geometry", "oracle")}
)
"""Values of `search.scorer`: `build(config, codebooks, decoder, first_geometric)`, as in `siglum.search.scorers`."""
