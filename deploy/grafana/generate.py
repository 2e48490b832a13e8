"""Writes the dashboards: python3 -m deploy.grafana.generate [FOLDER], deploy/grafana by default.

Run in the root of the checkout, in an environment with requirements.txt. What it writes is checked
in, and a test compares it.
"""

import json
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana import panels, rl_run, service


def main() -> None:
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "deploy/grafana")
    for name, board in (("rl_run", rl_run.board()), ("service", service.board())):
        text = json.dumps(panels.numbered(board), cls=JSONEncoder, indent=2, sort_keys=True)
        (folder / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
