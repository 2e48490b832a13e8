"""Are the differences larger than numerical noise: other weights, or another prompt?"""

from __future__ import annotations

from sis.diagnose.check import Check
from sis.diagnose.compared import Part
from sis.diagnose.difference import BEYOND_NOISE
from sis.diagnose.moments import Moments


def check_weights(part: Part) -> Check:
    enough = 5
    check = Check(
        "weights",
        "Are the differences small enough for the same weights?",
        "D per token in nats, less two standard errors",
        BEYOND_NOISE,
        "twice what 4-bit weights give, the largest numerical noise measured",
        "the checkpoint and adapters that both sides have loaded, whether the engine's weights are updated, the chat "
        "template",
    )
    d = Moments.of(part.compared.deviations[part.positions])
    if d.count < enough:
        return check.untested("too few positions have a ratio")
    return check.decide(
        d.mean - 2 * d.standard_error,
        f"The differences, D = {d.mean:.2g} nats per token, are too large for numerical noise: other weights (another "
        "version of the policy, an adapter left out), or another prompt or chat template.",
    )
