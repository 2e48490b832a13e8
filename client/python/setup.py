"""Generates the modules of proto/sis/v1 into the package. All else is in pyproject.toml."""

import pathlib
from importlib import resources

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
PROTOS = HERE.parent.parent / "proto"


class BuildWithProtos(build_py):
    def run(self) -> None:
        from grpc_tools import protoc

        arguments = [
            "protoc",
            f"-I{PROTOS}",
            f"-I{resources.files('grpc_tools') / '_proto'}",
            f"--python_out={HERE}",
            f"--pyi_out={HERE}",
            f"--grpc_python_out={HERE}",
            str(PROTOS / "sis/v1/ratio_service.proto"),
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed: a build needs the whole repository, for its folder proto/")
        super().run()


setup(cmdclass={"build_py": BuildWithProtos})
