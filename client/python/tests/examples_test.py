"""The examples of the README run as they are shown."""

import pathlib
import subprocess
import sys
import unittest

import fake_service

PACKAGE = pathlib.Path(__file__).parent.parent
EXAMPLES = PACKAGE / "examples"


class ExamplesTest(unittest.TestCase):
    def test_worker_and_trainer_meet(self):
        service = fake_service.FakeService()
        server, address = fake_service.start(service)
        self.addCleanup(server.stop, None)
        for name in ("worker.py", "trainer.py"):
            done = subprocess.run(
                [sys.executable, EXAMPLES / name, address], capture_output=True, text=True, timeout=50
            )
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"step 3: accepted [\d.]+%, D [\d.]+, D_SIS [\d.]+ nats")
        self.assertEqual(service.sequences, {})

    def test_the_readme_shows_what_runs(self):
        readme = (PACKAGE / "README.md").read_text()
        for name in ("worker.py", "trainer.py"):
            code = (EXAMPLES / name).read_text()
            self.assertIn(f"```python\n{code[code.index('import sys') :]}```\n", readme, name)


if __name__ == "__main__":
    unittest.main()
