"""Everything public has a docstring in Google's style, and every other module a leading underscore."""

import ast
import pathlib
import re
import unittest
from typing import Dict, Iterator, List, Set, Tuple, Union

PACKAGE = pathlib.Path(__file__).parents[1] / "sis"
# Modules that users import. Of engines and trainers, all modules without an underscore are public.
PUBLIC = {"export", "recomputed", "torch", "tracking"} | {
    f"{folder}.{path.stem}" for folder in ("engines", "integrations") for path in PACKAGE.glob(f"{folder}/[a-z]*.py")
}
# Packages: public are the names that their `_names.py` or `__init__.py` imports.
PACKAGES = {"", "engines", "integrations", "integrations.trl", "integrations.verl"}
# Classes whose bound methods are functions of sis.integrations.slime and its like.
BOUND = {"integrations._slime_family": ("OneTurn", "Process")}
# Programs, and the messages of the API.
PROGRAMS = {"cli", "diagnose", "v1", "web"}

Definition = Union[ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def path_of(module: str) -> pathlib.Path:
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


def definitions(path: pathlib.Path) -> Dict[str, Definition]:
    return {node.name: node for node in parsed(path).body if isinstance(node, (ast.ClassDef, *FUNCTIONS))}


def exported() -> Iterator[Tuple[str, Definition]]:
    """Yields the public classes and functions, with their full names."""
    for module in PUBLIC:
        for name, node in definitions(path_of(module)).items():
            if not name.startswith("_"):
                yield f"sis.{module}.{name}", node
        yield from imported(module, path_of(module), explicitly=True)
    for module, names in BOUND.items():
        for name in names:
            yield f"sis.{module}.{name}", definitions(path_of(module))[name]
    for package in PACKAGES:
        folder = PACKAGE.joinpath(*package.split("."))
        for path in (folder / "_names.py", folder / "__init__.py"):
            yield from imported(package, path)


def imported(module: str, path: pathlib.Path, explicitly: bool = False) -> Iterator[Tuple[str, Definition]]:
    """Yields what a file imports from the package, in functions and for type checkers too; `explicitly`: only names
    that it exports, `X as X`."""
    for node in ast.walk(parsed(path)) if path.is_file() else ():
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sis."):
            source = path_of(str(node.module)[len("sis.") :])
            own = definitions(source)
            for alias in exports(source) if node.names[0].name == "*" else node.names:
                if alias.name in own and (alias.asname == alias.name or not explicitly):
                    yield ".".join(filter(None, ("sis", module, alias.asname or alias.name))), own[alias.name]


def exports(path: pathlib.Path) -> Iterator[ast.alias]:
    """Yields the names in __all__ of a file."""
    for node in parsed(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from map(ast.alias, ast.literal_eval(node.value))


def section(text: str, title: str) -> str:
    """Returns a section of a docstring, or an empty text."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", text + "\n", flags=re.MULTILINE)
    return found.group(1) if found else ""


def described(text: str, title: str) -> List[str]:
    """Returns the names that a section describes."""
    names = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:", section(text, title), flags=re.MULTILINE)
    return [name.strip("*") for several in names for name in several.split(", ")]


def is_decorated(node: Definition, *names: str) -> bool:
    return any(name in ast.unparse(decorator) for decorator in node.decorator_list for name in names)


def lacking_in_function(name: str, node: Definition) -> Iterator[str]:
    text = ast.get_docstring(node) or ""
    if not text and not is_decorated(node, "setter"):
        yield f"{name}: docstring"
    if not text or is_decorated(node, "property"):
        return
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    for argument in arguments:
        if argument.arg not in ("self", "cls", *described(text, "Args")) and not argument.arg.startswith("_"):
            yield f"{name}: Args: {argument.arg}"
    no_result = node.returns is None or ast.unparse(node.returns) in ("None", "NoReturn")
    if not no_result and not re.search("^(Returns|Yields):", text, flags=re.MULTILINE):
        yield f"{name}: Returns"
    if any(isinstance(inner, ast.Raise) and inner.exc for inner in ast.walk(node)) and not section(text, "Raises"):
        yield f"{name}: Raises"


def inherited(node: ast.ClassDef, public: Dict[str, Definition]) -> Set[str]:
    """Returns the fields that public base classes describe, and the methods that they have."""
    found = set()
    for base in node.bases:
        for name, of_base in public.items():
            if isinstance(of_base, ast.ClassDef) and name.rpartition(".")[2] == ast.unparse(base):
                found |= inherited(of_base, public) | set(described(ast.get_docstring(of_base) or "", "Attributes"))
                found |= {inner.name for inner in of_base.body if isinstance(inner, FUNCTIONS)}
    return found


def lacking_in_class(name: str, node: ast.ClassDef, of_bases: Set[str]) -> Iterator[str]:
    text = ast.get_docstring(node) or ""
    if not text:
        yield f"{name}: docstring"
    fields = [*described(text, "Attributes"), *described(text, "Args"), *of_bases]
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            names = [inner.target.id]
        elif isinstance(inner, ast.Assign):
            names = [target.id for target in inner.targets if isinstance(target, ast.Name)]
        else:
            names = []
        yield from (f"{name}: Attributes: {field}" for field in names if field[0] != "_" and field not in fields)
        if isinstance(inner, FUNCTIONS) and inner.name == "__init__":
            arguments = [*inner.args.args[1:], *inner.args.kwonlyargs]
            known = fields + described(ast.get_docstring(inner) or "", "Args")
            yield from (f"{name}: Args: {one.arg}" for one in arguments if one.arg not in known)
        elif isinstance(inner, FUNCTIONS) and not inner.name.startswith("_") and not inner.name.endswith("_proto"):
            # help() shows the docstring of the base class.
            if inner.name in of_bases and not ast.get_docstring(inner):
                continue
            yield from lacking_in_function(f"{name}.{inner.name}", inner)


class DocstringsTest(unittest.TestCase):
    maxDiff = None

    def test_everything_public_is_described(self) -> None:
        public = dict(exported())
        self.assertGreater(len(public), 100)
        lacking = []
        for name, node in sorted(public.items()):
            if isinstance(node, ast.ClassDef):
                lacking += lacking_in_class(name, node, inherited(node, public))
            else:
                lacking += lacking_in_function(name, node)
        self.assertEqual(lacking, [])

    def test_other_modules_have_an_underscore(self) -> None:
        modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
        open_ = {module.removesuffix("__init__").strip(".") for module in modules}
        known = PUBLIC | PACKAGES
        self.assertEqual(known - open_, set())
        unknown = {
            module
            for module in open_ - known
            if module.split(".")[0] not in PROGRAMS and not re.search(r"(^|\.)_", module)
        }
        self.assertEqual(unknown, set(), "internal modules begin with an underscore")


if __name__ == "__main__":
    unittest.main()
