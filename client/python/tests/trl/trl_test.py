"""TRL itself, with vLLM and with transformers, and the real server, setting by setting: run by tools/rl-test."""

import unittest

# In one process: it takes long to import TRL and vLLM.
import trainer_case  # noqa: F401, I001  Before TRL itself.
from capture_cases import CaptureTest  # noqa: F401
from head_cases import TrlHeadTest  # noqa: F401
from observe_cases import TrlObserveTest  # noqa: F401
from outage_cases import TrlOutageTest  # noqa: F401
from own_sets_cases import TrlOwnSetsTest  # noqa: F401
from rank_cases import TrlRankTest  # noqa: F401
from refusal_cases import TrlRefusalTest  # noqa: F401
from rollout_cases import TrlRolloutTest  # noqa: F401
from run_cases import TrlRunTest  # noqa: F401
from snippet_cases import TrlSnippetTest  # noqa: F401
from table_cases import TrlTableTest  # noqa: F401
from weight_cases import TrlWeightTest  # noqa: F401

if __name__ == "__main__":
    unittest.main()
