"""The public names of the Python package, read from its sources: some of its modules import what
isn't installed where tests run.

A line is a module's name, a class, its field or method, or a function, followed by the parameters.
"""

import ast
import functools
import pathlib
from typing import Dict, List, Tuple

ROOT = pathlib.Path("client/python")
MODULES = (
    "sis",
    "sis.aio",
    "sis.engines",
    "sis.engines.llama_cpp",
    "sis.engines.sglang",
    "sis.engines.teachers",
    "sis.engines.transformers",
    "sis.engines.vllm",
    "sis.export",
    "sis.torch",
    "sis.torchrl",
    "sis.tracking",
    "sis.trl",
    "sis.verl",
)
# Without an __all__, but what it takes from others of the package, and `sis` hasn't got, is for its
# users too.
PASSES_ON = "sis.torch"
# Between modules of the package, and for its messages.
INTERNAL = {"flush_untraced", "from_proto", "put", "refer", "refer_all", "to_proto"}

Definition = Tuple[str, ast.AST]  # the module that has it


@functools.lru_cache(maxsize=None)
def tree(module: str) -> ast.Module:
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text())


def targets(node: ast.AST) -> List[str]:
    """The names that an assignment gives a value."""
    found = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in found if isinstance(target, ast.Name)]


def names(module: str) -> Dict[str, ast.AST]:
    """What stands at the top of a module, by name."""
    found: Dict[str, ast.AST] = {}
    for node in tree(module).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            found.update((name, node) for name in targets(node))
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("sis."):
            found.update((alias.asname or alias.name, node) for alias in node.names)
    return found


def definition_of(module: str, name: str) -> Definition:
    """Where it is defined, and how, whichever modules have passed it on."""
    node = names(module)[name]
    if not isinstance(node, ast.ImportFrom):
        return module, node
    (original,) = [alias.name for alias in node.names if name in (alias.name, alias.asname)]
    if original not in names(node.module):
        return f"{node.module}.{original}", tree(f"{node.module}.{original}")
    return definition_of(node.module, original)


def version() -> str:
    return ast.literal_eval(names("sis")["__version__"].value)


def parameters(function: ast.AST) -> List[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [a.arg for a in every if a.arg not in ("self", "cls") and not a.arg.startswith("_")]


def members(definition: Definition) -> Dict[str, List[str]]:
    """Of a class and those below it in the package: member -> parameters; those of the constructor
    under an empty name."""
    module, node = definition
    found: Dict[str, List[str]] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in names(module):
            below = definition_of(module, base.id)
            if isinstance(below[1], ast.ClassDef):
                found.update(members(below))
    for part in node.body:
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found["" if part.name == "__init__" else part.name] = parameters(part)
        else:
            found.update((name, []) for name in targets(part))
    public = (name for name in sorted(found) if not name.startswith("_") and name not in INTERNAL)
    return {name: found[name] for name in public}


def is_for_itself(node: ast.AST, name: str) -> bool:
    """Whether a module imports a name for its own use: not as in `from sis.run import Run as Run`."""
    if not isinstance(node, ast.ImportFrom):
        return False
    return name not in {alias.asname for alias in node.names if alias.asname == alias.name}


def exported(module: str) -> List[str]:
    there = names(module)
    if "__all__" in there:
        return sorted(ast.literal_eval(there["__all__"].value))
    passed_on = {name for name, node in there.items() if is_for_itself(node, name)}
    left_out = exported("sis") if module == PASSES_ON else passed_on
    return sorted(name for name in there if not name.startswith("_") and name not in left_out)


def lines() -> List[str]:
    found = []
    for module in MODULES:
        found.append(module)
        for name in exported(module):
            full = f"{module}.{name}"
            definition = definition_of(module, name)
            node = definition[1]
            if isinstance(node, ast.ClassDef):
                its = members(definition)
                found.append(" ".join([full, *its.pop("", [])]))
                found += [" ".join([f"{full}.{member}", *its[member]]) for member in its]
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(" ".join([full, *parameters(node)]))
            else:
                found.append(full)
    return found
