#!/usr/bin/env bash
# GRPO with verl, vLLM and SIS: train.sh MODEL TRAIN.parquet TEST.parquet [OVERRIDE...]
#
# Needs Ray and a GPU. $SIS_ADDRESS names the server, $RUN the training, unlike any before it.
set -euo pipefail
model=$1 train=$2 test=$3
shift 3
overrides=()
while read -r line; do
  overrides+=("${line//\$SIS_ADDRESS/${SIS_ADDRESS:-localhost:50051}}")
done < <(grep -v '^#' "$(dirname "${BASH_SOURCE[0]}")/overrides.txt")
exec python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_files="$train" data.val_files="$test" data.train_batch_size=256 \
  actor_rollout_ref.model.path="$model" \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=true \
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  trainer.n_gpus_per_node="${GPUS:-1}" trainer.nnodes=1 \
  "${overrides[@]//my-training/${RUN:-my-training}}" "$@"
