"""Writes the dashboards, rl_run.json and service.json, into folders.

Run `python3 -m deploy.grafana.generate` in the root of the checkout. Without arguments it writes to
deploy/grafana and into the chart, where deploy/compose and Helm read the files. Git ignores them.
"""

import json
import pathlib
import sys

from deploy.grafana import rl_run, service

_FOLDERS = ("deploy/grafana", "deploy/helm/sis-ratio-service/files")


def main() -> None:
    for folder in sys.argv[1:] or _FOLDERS:
        for name, board in (("rl_run", rl_run.board()), ("service", service.board())):
            text = json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False)
            pathlib.Path(folder, f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
