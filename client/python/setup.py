"""Puts Chart.js into the package, and what protoc makes of proto/sis/v1: descriptors, from which it makes its
messages when it is imported, and their types for type checkers. With sis/libsis_kernels.so, which tools/wheels
builds, the wheel is of this machine's kind, and runs with every Python. All else is in pyproject.toml."""

import os
import pathlib
import shutil
import tempfile
from importlib import resources
from typing import Tuple

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
PROTOS = HERE.parent.parent / "proto"
HAS_KERNELS = (HERE / "sis/libsis_kernels.so").is_file()


def protoc(*arguments: str) -> None:
    from grpc_tools import protoc

    if protoc.main(["protoc", *arguments]) != 0:
        raise SystemExit("protoc failed: a build needs the whole repository, for its folder proto/")


def in_one_file(descriptors: bytes) -> bytes:
    """The same messages as if one file declared them, as one module of the package has them all."""
    from google.protobuf import descriptor_pb2

    merged = descriptor_pb2.FileDescriptorSet()
    whole = merged.file.add()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        for field in ("dependency", "public_dependency"):
            file.ClearField(field)
        # The name is the last one's: ratio_service.proto imports all others.
        whole.MergeFrom(file)
    return merged.SerializeToString()


class BuildWithProtos(build_py):
    def run(self) -> None:
        super().run()
        root = HERE if self.editable_mode else pathlib.Path(self.build_lib)
        descriptors = root / "sis/v1/ratio_service.binpb"
        service = "sis/v1/ratio_service.proto"
        wellknown = resources.files("grpc_tools") / "_proto"
        protoc(f"-I{PROTOS}", f"-I{wellknown}", "--include_imports", f"--descriptor_set_out={descriptors}", service)
        # A file of the page that is not in the repository.
        chart_js = pathlib.Path(os.environ.get("CHART_JS", "/usr/share/javascript/chart.js/chart.min.js"))
        if not chart_js.is_file():
            raise SystemExit(
                f"there is no {chart_js}: install Debian's package libjs-chart.js, or set CHART_JS to the file "
                "chart.min.js of Chart.js 3"
            )
        shutil.copyfile(chart_js, root / "sis/web/page/chart.js")
        with tempfile.NamedTemporaryFile() as whole:
            whole.write(in_one_file(descriptors.read_bytes()))
            whole.flush()
            protoc(f"--descriptor_set_in={whole.name}", f"--pyi_out={root}", service)


class WithKernels(Distribution):
    def has_ext_modules(self) -> bool:
        return HAS_KERNELS


class AnyPython(bdist_wheel):
    def get_tag(self) -> Tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=WithKernels, cmdclass={"bdist_wheel": AnyPython, "build_py": BuildWithProtos})
