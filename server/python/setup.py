"""A wheel of this machine's kind that runs with every Python. All else is in pyproject.toml."""

from typing import Tuple

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Binaries(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class AnyPython(bdist_wheel):
    def get_tag(self) -> Tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=Binaries, cmdclass={"bdist_wheel": AnyPython})
