"""The snippets of README.md and of the pages in docs, which tests run as they stand.

A test that calls `snippets.run("engines", 1, ...)` runs the first Python snippet of docs/engines.md. It stands next to
the packages that the snippet imports. tests/docs/paths_test.py fails for a snippet that no test runs. snippets_test.py
parses shell snippets.
"""

import ast
import pathlib
import re
from typing import Any, Dict, List

ROOT = pathlib.Path(__file__).absolute().parents[3]
# By name.
PAGES = {path.stem: path for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]}


def of_page(name: str, language: str) -> List[str]:
    text = PAGES[name].read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run(page: str, number: int, names: Dict[str, Any]) -> Any:
    """Runs a Python snippet, which stores its variables in `names`.

    Args:
        number: The number of the snippet in its page, from 1 on.
        names: What a reader has there, by its name in the page.

    Returns:
        None, or for a snippet that awaits a coroutine that runs it.
    """
    snippet = of_page(page, "python")[number - 1]
    return eval(compile(snippet, f"{page}.md, snippet {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
