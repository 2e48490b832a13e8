#include "kernels/cuda/evaluate/staged_backend.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "kernels/cuda/evaluate/tuning.h"

namespace sis::cuda {

// An empty batch has space for a tile of any range with its block.
static_assert(ResidentBlocks::CopyBytes(kMaxBlockBytes) + Batch::kRangeBytes +
                      Batch::kMaxTileBytes <=
                  kStagedInputBytes &&
              Batch::kRangeBytes + Batch::kTileOutputBytes <= kStagedOutputBytes);

// A stage and the batch that is in it.
struct StagedBackend::StagedBatch {
  StagedBatch(std::unique_ptr<Stage> stage, ResidentBlocks* blocks)
      : stage(std::move(stage)), batch(kStagedInputBytes, kStagedOutputBytes, blocks) {}

  std::unique_ptr<Stage> stage;
  Batch batch;
  bool started = false;
  absl::Status start_status;

  absl::Status Start() {
    batch.WriteInput(stage->input().data());
    started = true;
    start_status = stage->Start(batch);
    return start_status;
  }

  absl::Status Finish(std::vector<PendingSums>& sums) {
    if (!started) return absl::OkStatus();
    started = false;
    // Waits in any case. A batch whose start failed is incomplete, even if Finish succeeds.
    absl::Status status = stage->Finish();
    status.Update(start_status);
    if (!status.ok()) return status;
    batch.ReadOutput(stage->output().data(), sums);
    batch.Done();
    return status;
  }
};

struct StagedBackend::Pair {
  Pair(StagePair stages, ResidentBlocks* blocks)
      : batches{StagedBatch(std::move(stages[0]), blocks),
                StagedBatch(std::move(stages[1]), blocks)} {}

  std::array<StagedBatch, 2> batches;
};

// Reserves a pair while it exists.
class StagedBackend::PairInUse {
 public:
  explicit PairInUse(const StagedBackend& backend) : backend_(backend) {
    std::unique_lock lock(backend_.mutex_);
    backend_.freed_.wait(lock, [this] { return !backend_.free_.empty(); });
    pair_ = backend_.free_.back();
    backend_.free_.pop_back();
  }
  ~PairInUse() {
    {
      const std::lock_guard lock(backend_.mutex_);
      backend_.free_.push_back(pair_);
    }
    backend_.freed_.notify_one();
  }
  PairInUse(const PairInUse&) = delete;
  PairInUse& operator=(const PairInUse&) = delete;

  Pair& pair() { return *pair_; }

 private:
  const StagedBackend& backend_;
  Pair* pair_;
};

StagedBackend::StagedBackend(std::string name, std::vector<StagePair> stages,
                             std::unique_ptr<const Backend> fallback,
                             std::unique_ptr<ResidentMemory> memory, size_t slab_bytes)
    : name_(std::move(name)),
      fallback_(std::move(fallback)),
      memory_(std::move(memory)),
      blocks_(memory_ == nullptr ? nullptr
                                 : std::make_unique<ResidentBlocks>(*memory_, slab_bytes)) {
  for (StagePair& pair : stages) {
    pairs_.push_back(std::make_unique<Pair>(std::move(pair), blocks_.get()));
    free_.push_back(pairs_.back().get());
  }
}

StagedBackend::~StagedBackend() = default;

ResidentBlocksStats StagedBackend::resident_blocks() const {
  return blocks_ == nullptr ? ResidentBlocksStats() : blocks_->stats();
}

void StagedBackend::Evaluate(const EvaluateParameters& parameters,
                             std::span<const BackendRange> ranges) const {
  const bool for_device = parameters.prefix_curve.empty() && !parameters.total_variation &&
                          std::ranges::none_of(ranges, [](const BackendRange& range) {
                            return range.current.reduced();
                          });
  if (!failed_ && for_device) {
    const absl::Status status = TryEvaluate(parameters, ranges);
    if (status.ok()) return;
    if (!failed_.exchange(true)) {
      // Written at once, so that other threads' lines don't interleave.
      std::cerr << "backend: " + name_ + " failed, from now on " + std::string(fallback_->name()) +
                       " (" + std::string(status.message()) + ")\n";
    }
  }
  fallback_->Evaluate(parameters, ranges);
}

absl::Status StagedBackend::TryEvaluate(const EvaluateParameters& parameters,
                                        std::span<const BackendRange> ranges) const {
  PairInUse in_use(*this);
  std::vector<PendingSums> sums;
  absl::Status status;
  size_t range = 0;
  size_t first = 0;
  for (size_t turn = 0; range < ranges.size() && status.ok(); ++turn) {
    StagedBatch& staged = in_use.pair().batches[turn % 2];
    status = staged.Finish(sums);
    if (!status.ok()) break;
    staged.batch.Reset(parameters);
    while (range < ranges.size()) {
      const size_t left = ranges[range].behavior.size() - first;
      const size_t taken = staged.batch.Take(ranges[range], first);
      if (taken == 0 && left > 0) break;
      first += taken;
      if (taken == left) {
        ++range;
        first = 0;
      }
    }
    if (!staged.batch.empty()) status = staged.Start();
  }
  for (StagedBatch& staged : in_use.pair().batches) status.Update(staged.Finish(sums));
  if (!status.ok()) return status;
  for (const PendingSums& pending : sums) *pending.into += pending.sums;
  return absl::OkStatus();
}

}  // namespace sis::cuda
