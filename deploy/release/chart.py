"""Packs the chart as `helm package` does, by Helm's own code (deploy/helm/requirements.txt), with
the same bytes whenever it does so: of a time that is given, and of nobody.

    SOURCE_DATE_EPOCH=SECONDS python deploy/release/chart.py FOLDER
"""

import gzip
import io
import os
import pathlib
import sys
import tarfile
import tempfile

CHART = pathlib.Path(__file__).parent.parent / "helm/sis-ratio-service"


def repacked(package: bytes, seconds: int) -> bytes:
    """The same files in order of their names, all of this time."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(package)) as old:
        with gzip.GzipFile("", "wb", 9, out, seconds) as zipped:
            with tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as new:
                for member in sorted(old, key=lambda member: member.name):
                    clean = tarfile.TarInfo(member.name)
                    clean.size, clean.mode, clean.mtime = member.size, 0o644, seconds
                    new.addfile(clean, old.extractfile(member))
    return out.getvalue()


def main() -> None:
    import helm_python

    seconds = int(os.environ["SOURCE_DATE_EPOCH"])
    with tempfile.TemporaryDirectory() as scratch:
        made = pathlib.Path(helm_python.package(CHART, destination=scratch))
        package = repacked(made.read_bytes(), seconds)
    with helm_python.Chart.load_archive(package) as chart, helm_python.Chart.load(CHART) as source:
        assert chart.metadata == source.metadata
        assert len(chart.templates) == len(source.templates)
    pathlib.Path(sys.argv[1], made.name).write_bytes(package)


if __name__ == "__main__":
    main()
