"""verl's FSDP2 and Megatron engines beside the real server, setting by setting: run by tools/rl-test."""

import unittest

# In one process: it takes long to import verl.
import verl_case  # noqa: F401, I001  Before verl itself.
from asynchronous_cases import VerlAsynchronousTest  # noqa: F401
from decision_cases import VerlDecisionTest  # noqa: F401
from filter_cases import VerlFilterTest  # noqa: F401
from observe_cases import VerlObserveTest  # noqa: F401
from outage_cases import VerlOutageTest  # noqa: F401
from own_sets_cases import VerlOwnSetsTest  # noqa: F401
from rank_cases import VerlRankTest  # noqa: F401
from ray_cases import VerlRayTest  # noqa: F401
from refusal_cases import VerlRefusalTest  # noqa: F401
from snippet_cases import VerlSnippetTest  # noqa: F401
from trainer_cases import VerlTrainerTest  # noqa: F401
from vocabulary_cases import VerlVocabularyTest  # noqa: F401
from weight_cases import VerlWeightTest  # noqa: F401

if __name__ == "__main__":
    unittest.main(verbosity=2)
