"""What the adapter expects of a checkout, where it really is, and how the two differ. Nothing is imported here.

Source of the expectations: the public ancestor at commit `1b3f5256` and the description of the latent variant
(class, function and result names). The code is read with `ast`, so a checkout can be described before any of
it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.errors import InputError

PACKAGE = "diffsynth"
REFERENCE_COMMIT = "1b3f5256"
EXPLICIT_NAMES = ("model_fn_stateplay", "StatePlayPipeline")
"""Entry points of the explicit-state ancestor: an implicit checkpoint never goes through them."""


@dataclass(frozen=True)
class Expected:
    """One part that the adapter uses.

    Args:
        module, name: where the ancestor (or its latent variant) has it.
        parameters: argument names that the adapter passes.
        required: whether a world can be built without it.
        ending: further class names that are accepted, by their end.
    """

    module: str
    name: str
    parameters: tuple[str, ...]
    required: bool = True
    ending: str = ""


EXPECTED: Mapping[str, Expected] = {
    "model": Expected("diffsynth.models.stateplay_dit", "StatePlayModel", ("num_buttons",)),
    "model_fn": Expected(
        "diffsynth.pipelines.stateplay",
        "model_fn_stateplay_latent",
        ("dit", "latents", "timestep", "context", "keyboard_action", "fuse_vae_embedding_in_latents"),
    ),
    "vae": Expected("diffsynth.models.wan_video_vae", "WanVideoVAE38", ()),
    "text_encoder": Expected("diffsynth.models.wan_video_text_encoder", "WanTextEncoder", ()),
    "text_tokenizer": Expected("diffsynth.models.wan_video_text_encoder", "HuggingfaceTokenizer", ("name", "seq_len")),
    "scheduler": Expected("diffsynth.diffusion.flow_match", "FlowMatchScheduler", (), required=False),
    "transition_tokenizer": Expected(
        "diffsynth.models.transition_tokenizer", "TransitionTokenizer", (), False, "TransitionTokenizer"
    ),
    # Its place and name are not known: only the world file names it.
    "sampler": Expected("", "", ("dit", "latents", "first_frame_latents", "context", "keyboard_action"), False),
}
METHODS: Mapping[str, tuple[str, ...]] = {"vae": ("encode", "decode"), "scheduler": ("set_timesteps",)}


@dataclass(frozen=True)
class Definition:
    """A class or function of the checkout.

    Args:
        parameters: argument names, of a class those of its `__init__`.
        open_ended: whether it takes `**kwargs` (or inherits its arguments from a class elsewhere).
        methods: of a class.
    """

    module: str
    name: str
    file: str
    line: int
    parameters: tuple[str, ...]
    open_ended: bool
    methods: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """`module:name (file:line)`."""
        return f"{self.module}:{self.name} ({self.file}:{self.line})"


@dataclass(frozen=True)
class SymbolMap:
    """Where every part is, and what differs from the expectation, in sentences."""

    found: Mapping[str, Definition]
    differences: tuple[str, ...]

    def signatures(self) -> dict[str, dict[str, object]]:
        """Per part the argument names that the adapter passes and those of the checkout, for the record."""
        return {
            part: {
                "expected": list(expected.parameters),
                "found": list(self.found[part].parameters) if part in self.found else None,
                "takes_more": part in self.found and self.found[part].open_ended,
            }
            for part, expected in EXPECTED.items()
        }


def map_symbols(root: Path, overrides: Mapping[str, str]) -> SymbolMap:
    """Find the parts in the code below `root/diffsynth`.

    Args:
        root: the folder that holds the package `diffsynth`.
        overrides: part -> `module:name`, from the world file.

    Raises:
        InputError: a part is missing, defined several times elsewhere, or is the explicit-state ancestor's.
    """
    unknown = sorted(set(overrides) - set(EXPECTED))
    if unknown:
        raise InputError(f"checkout_options.symbols: unknown parts {unknown}", f"parts: {', '.join(EXPECTED)}")
    definitions = list(_definitions(root))
    found: dict[str, Definition] = {}
    differences: list[str] = []
    for part, expected in EXPECTED.items():
        if not expected.name and part not in overrides:
            continue
        definition, note = _find(part, expected, overrides.get(part), definitions)
        if note:
            differences.append(note)
        if definition is not None:
            found[part] = definition
            differences += _signature(part, expected, definition)
    if "sampler" not in overrides:
        differences += _possible_samplers(definitions, found.get("model_fn"))
    # A part that the world file names must be there, needed or not: nothing stands in for it unasked.
    missing = [part for part, e in EXPECTED.items() if (e.required or part in overrides) and part not in found]
    if missing:
        raise InputError(
            f"checkout {root}: {'; '.join(differences)}",
            "name where they are: checkout_options: {symbols: {" + f"{missing[0]}: module:name" + "}}",
        )
    for part in ("model_fn", "sampler"):
        if part in found and found[part].name in EXPLICIT_NAMES:
            raise InputError(
                f"{found[part].where} is the explicit-state model's entry point",
                "an implicit checkpoint goes through model_fn_stateplay_latent only",
            )
    return SymbolMap(found, tuple(differences))


def literal(root: Path, name: str) -> dict[str, object] | None:
    """The value of a module-level dictionary literal `name` in the checkout; None unless there is exactly one."""
    values = []
    for file in sorted(root.rglob("*.py")):
        for node in _parse(file).body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                try:
                    value = ast.literal_eval(node.value)
                except ValueError:
                    continue
                if isinstance(value, dict):
                    values.append(value)
    return values[0] if len(values) == 1 else None


def _find(
    part: str, expected: Expected, override: str | None, definitions: list[Definition]
) -> tuple[Definition | None, str]:
    module, name = (override.partition(":")[::2]) if override else (expected.module, expected.name)
    exact = [d for d in definitions if (d.module, d.name) == (module, name)]
    if exact:
        return exact[0], "" if override is None else f"{part}: {exact[0].where}, as the world file says"
    if override:
        return None, f"{part}: {override} of the world file is not in the checkout"
    elsewhere = [d for d in definitions if d.name == name]
    if not elsewhere and expected.ending:
        elsewhere = [d for d in definitions if d.name.endswith(expected.ending)]
    if len(elsewhere) == 1:
        return elsewhere[0], f"{part}: expected {module}:{name}, found {elsewhere[0].where}"
    if elsewhere:
        return None, f"{part}: {name} is defined {len(elsewhere)} times: {', '.join(d.where for d in elsewhere)}"
    return None, f"{part}: {module}:{name} is not there"


def _possible_samplers(definitions: list[Definition], model_fn: Definition | None) -> Iterator[str]:
    """Functions that look like a sampler of the implicit model; named, never taken unasked."""
    for definition in definitions:
        takes = {"latents", "keyboard_action"} <= set(definition.parameters)
        if takes and "sampl" in definition.name.lower() and definition != model_fn:
            yield (
                f"sampler: {definition.where} looks like one and is not used; to use it: symbols: "
                f"{{sampler: {definition.module}:{definition.name}}}"
            )


def _signature(part: str, expected: Expected, found: Definition) -> Iterator[str]:
    if not found.open_ended:
        lacking = [name for name in expected.parameters if name not in found.parameters]
        if lacking:
            yield f"{part}: {found.where} takes no {', '.join(lacking)}; it takes {', '.join(found.parameters)}"
    lacking = [name for name in METHODS.get(part, ()) if name not in found.methods]
    if lacking and not found.open_ended:
        yield f"{part}: {found.where} defines no {', '.join(lacking)} itself"


def _definitions(root: Path) -> Iterator[Definition]:
    package = root / PACKAGE
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        shown = file.relative_to(root).as_posix()
        for node in _parse(file).body:
            if isinstance(node, ast.FunctionDef):
                names, opened = _arguments(node)
                yield Definition(module, node.name, shown, node.lineno, names, opened)
            elif isinstance(node, ast.ClassDef):
                yield _class(node, module, shown)


def _class(node: ast.ClassDef, module: str, file: str) -> Definition:
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    names, opened = _arguments(methods["__init__"]) if "__init__" in methods else ((), True)
    own_names = tuple(name for name in names if name != "self")
    inherits = any(not (isinstance(base, ast.Attribute) and base.attr == "Module") for base in node.bases)
    return Definition(module, node.name, file, node.lineno, own_names, opened or inherits, tuple(methods))


def _arguments(node: ast.FunctionDef) -> tuple[tuple[str, ...], bool]:
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return tuple(names), arguments.kwarg is not None


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"checkout file {file} does not parse ({error})", "check the checkout") from error
