"""What tests that start engines or ranks of their own leave out, unless tools/rl-test is told --all, or their names."""

import os
import unittest

takes_minutes = unittest.skipUnless("SIS_ALL" in os.environ, "with tools/rl-test --all, or by name")
