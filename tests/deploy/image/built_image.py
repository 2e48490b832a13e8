"""Base of the tests of images that tools/image builds."""

import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).parent
# Messages of apt if no archive is reachable.
UNREACHABLE = re.compile("Temporary failure resolving|Could not resolve|Could not connect|Unable to connect")
# Buildah's message in a chroot of a plain folder.
NO_ROOT_TO_MOUNT = re.compile("remount /, flags: .*: invalid argument")


def unpacked(archive, folder):
    """Unpacks what `docker load` would read. Returns the image's names and its configuration."""
    with tarfile.open(archive) as file:
        file.extractall(folder)
    (image,) = json.loads((folder / "manifest.json").read_text())
    for layer in image["Layers"]:
        with tarfile.open(folder / layer) as file:
            file.extractall(folder / "root")
    return image["RepoTags"], json.loads((folder / image["Config"]).read_text())["config"]


def make_image(options, folder, **environment):
    return subprocess.run(
        ["tools/image", *options, folder],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "HOME": str(folder), **environment},
    )


class BuiltImageTest(unittest.TestCase):
    """Builds the image of `options`, and unpacks it."""

    options = ()

    @classmethod
    def environment(cls):
        """Returns the environment of tools/image."""
        return {}

    @classmethod
    def setUpClass(cls):
        if os.getuid() != 0:
            raise unittest.SkipTest("only root may run an image without a container runtime")
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        # The user of the image must reach its files.
        cls.folder.chmod(0o755)
        made = make_image(cls.options, cls.folder, **cls.environment())
        sys.stderr.write(made.stdout + made.stderr)
        if made.returncode and UNREACHABLE.search(made.stderr):
            raise unittest.SkipTest("apt reaches no archive here")
        if made.returncode and NO_ROOT_TO_MOUNT.search(made.stderr):
            raise unittest.SkipTest("/ is no mount point here, and Buildah needs one")
        assert made.returncode == 0, made.returncode
        (archive,) = cls.folder.glob("*.tar")
        cls.names, cls.configuration = unpacked(archive, cls.folder)
        cls.root = cls.folder / "root"
        (bill,) = cls.folder.glob("*.spdx.json")
        cls.bill = json.loads(bill.read_text())

    def image_process(self, *command):
        """Starts a command inside the image, with a new volume. Skips the test if mounting is forbidden."""
        volume = self.enterContext(tempfile.TemporaryDirectory())
        os.chown(volume, 65532, 65532)
        process = subprocess.Popen(
            [sys.executable, FOLDER / "image_process.py", self.root, volume,
             *(self.configuration["Env"] or ()), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def programs(self):
        """Paths of all programs. Nothing gives privileges, or can be written to by others."""
        found = set()
        for path in self.root.rglob("*"):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                self.assertFalse(mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH), path)
                if mode & stat.S_IXUSR and ".so" not in path.name:
                    found.add(path.relative_to(self.root).as_posix())
        return found

    def mebibytes(self):
        files = [path for path in self.root.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
        return sum(path.lstat().st_size for path in files) / (1 << 20)
