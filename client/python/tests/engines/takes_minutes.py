"""Skips slow tests, which start engines or ranks, unless tools/rl-test has --all or their names."""

import os
import unittest

takes_minutes = unittest.skipUnless("SIS_ALL" in os.environ, "with tools/rl-test --all, or by name")
