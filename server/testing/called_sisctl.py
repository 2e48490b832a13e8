"""Calls sisctl in this process."""

import contextlib
import io
import os
import sys
import warnings
from unittest import mock

from sis.cli.main import run


def sisctl(*words, given=b"", **environment):
    """Returns the exit code, standard output and standard error. given: standard input."""
    out, err = io.TextIOWrapper(io.BytesIO(), newline=""), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # Typer 0.7 warns of its own names.
        warnings.simplefilter("ignore", DeprecationWarning)
        stack.enter_context(mock.patch.dict(os.environ, environment))
        stack.enter_context(mock.patch.object(sys, "argv", ["sisctl", *map(str, words)]))
        stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(given))))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            run()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
    out.flush()
    return code, out.buffer.getvalue().decode(), err.getvalue()
