"""The examples of the quick start run as they are shown."""

import pathlib
import subprocess
import sys
import unittest

import fake_service

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
QUICK_START = pathlib.Path(__file__).parents[3] / "docs/quick_start.md"


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

    def test_the_page_shows_what_runs(self):
        page = QUICK_START.read_text()
        for name in ("worker.py", "trainer.py"):
            code = (EXAMPLES / name).read_text()
            self.assertIn(f"```python\n{code[code.index('import sys') :]}```\n", page, name)


if __name__ == "__main__":
    unittest.main()
