"""Puts what protoc makes of proto/sis/v1 into the package: descriptors, from which it makes its
messages when it is imported, and their types for type checkers. All else is in pyproject.toml."""

import pathlib
from importlib import resources

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
PROTOS = HERE.parent.parent / "proto"


class BuildWithProtos(build_py):
    def run(self) -> None:
        from grpc_tools import protoc

        super().run()
        root = HERE if self.editable_mode else pathlib.Path(self.build_lib)
        arguments = [
            "protoc",
            f"-I{PROTOS}",
            f"-I{resources.files('grpc_tools') / '_proto'}",
            f"--descriptor_set_out={root / 'sis/v1/ratio_service.binpb'}",
            f"--pyi_out={root}",
            str(PROTOS / "sis/v1/ratio_service.proto"),
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed: a build needs the whole repository, for its folder proto/")


setup(cmdclass={"build_py": BuildWithProtos})
