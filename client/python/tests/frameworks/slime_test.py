import unittest

from slime.utils.data import process_rollout_data
from slime_family_case import SlimeCase

import sis.integrations.slime


class SlimeTest(SlimeCase, unittest.TestCase):
    module = sis.integrations.slime
    OWN = {**SlimeCase.OWN, "sglang_dp_size": 1}
    METRICS = "backends.megatron_utils.cp_utils"

    def processed(self, args, held):
        return process_rollout_data(args, held, 0, 1)


if __name__ == "__main__":
    unittest.main()
