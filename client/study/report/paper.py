"""The paper's own numbers: averages of accuracy in percent, from its tables on Qwen3-8B-Base, mathematics."""

# tab:trick: arm of the study -> average. The study has no Clip-Cov.
TRICKS = {
    "no_correction": 47.26,
    "importance_sampling": 48.13,
    "grpo": 49.05,
    "dapo": 51.24,
    "gspo": 52.44,
    "cispo": 54.44,
    "dppo_top_k": 49.48,
    "importance_sampling+sampled": 51.81,
    "grpo+sampled": 52.59,
    "dapo+sampled": 55.14,
}
# tab:main, the same backbone: algorithm -> (alone, with SIS).
MAIN = {"grpo": (49.05, 52.59), "dapo": (51.24, 55.14), "gspo": (52.44, 53.54)}
# tab:staleness: (updates per rollout, algorithm) -> (alone, with SIS).
STALENESS = {
    (4, "grpo"): (49.05, 52.59),
    (8, "grpo"): (49.14, 51.64),
    (16, "grpo"): (48.58, 51.92),
    (4, "dapo"): (51.24, 55.14),
    (8, "dapo"): (51.54, 53.41),
    (16, "dapo"): (48.81, 52.92),
    (4, "gspo"): (52.44, 53.54),
    (8, "gspo"): (50.12, 52.22),
    (16, "gspo"): (49.03, 50.19),
}
# tab:noclip.
NO_CLIP = {"grpo": 49.05, "grpo+sampled": 52.59, "importance_sampling+sampled": 51.81}
# tab:ablation_topk, GRPO with SIS: K -> average.
TOP_K = {10: 52.59, 50: 52.53, 100: 52.24}
