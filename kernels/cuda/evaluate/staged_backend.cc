#include "kernels/cuda/evaluate/staged_backend.h"

#include <iostream>
#include <utility>

#include "kernels/cuda/evaluate/tuning.h"

namespace sis::cuda {

// An empty batch has room for any piece: two policies' rows in float32, all other arrays, the piece
// itself, and rows to upload, which fit into a chunk.
static_assert((Batch::kPiecePositions + 2 * kGroupPositions) * (2 * 4 * kMaxTopK + 32) + 4096 +
                  ResidentRows::kChunkBytes <=
              kStagedInputBytes);
static_assert(Batch::kPiecePositions * 16 + 4096 <= kStagedOutputBytes);

// A stage and the batch that is in it.
struct StagedBackend::Slot {
  Slot(std::unique_ptr<Stage> stage, ResidentRows* rows)
      : stage(std::move(stage)), batch(kStagedInputBytes, kStagedOutputBytes, rows) {}

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
    // Waited for in any case; but what began with an error is not whole, even if it ends without.
    absl::Status status = stage->Finish();
    status.Update(start_status);
    if (!status.ok()) return status;
    batch.ReadOutput(stage->output().data(), sums);
    batch.Done();
    return status;
  }
};

struct StagedBackend::Pair {
  Pair(StagePair stages, ResidentRows* rows)
      : slots{Slot(std::move(stages[0]), rows), Slot(std::move(stages[1]), rows)} {}

  std::array<Slot, 2> slots;
};

// The use of a pair, which is idle before and after.
class StagedBackend::Lease {
 public:
  explicit Lease(const StagedBackend& backend) : backend_(backend) {
    std::unique_lock lock(backend_.mutex_);
    backend_.freed_.wait(lock, [this] { return !backend_.free_.empty(); });
    pair_ = backend_.free_.back();
    backend_.free_.pop_back();
  }
  ~Lease() {
    {
      const std::lock_guard lock(backend_.mutex_);
      backend_.free_.push_back(pair_);
    }
    backend_.freed_.notify_one();
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Pair& pair() { return *pair_; }

 private:
  const StagedBackend& backend_;
  Pair* pair_;
};

StagedBackend::StagedBackend(std::string name, std::vector<StagePair> stages,
                             std::unique_ptr<const Backend> fallback,
                             std::unique_ptr<ResidentMemory> memory, size_t chunk_bytes)
    : name_(std::move(name)),
      fallback_(std::move(fallback)),
      memory_(std::move(memory)),
      rows_(memory_ == nullptr ? nullptr : std::make_unique<ResidentRows>(*memory_, chunk_bytes)) {
  for (StagePair& pair : stages) {
    pairs_.push_back(std::make_unique<Pair>(std::move(pair), rows_.get()));
    free_.push_back(pairs_.back().get());
  }
}

StagedBackend::~StagedBackend() = default;

ResidentRowsStats StagedBackend::resident_rows() const {
  return rows_ == nullptr ? ResidentRowsStats() : rows_->stats();
}

void StagedBackend::Evaluate(const EvaluateParameters& parameters,
                             std::span<const Segment> segments) const {
  if (!failed_ && parameters.prefix_curve.empty()) {
    const absl::Status status = TryEvaluate(parameters, segments);
    if (status.ok()) return;
    if (!failed_.exchange(true)) {
      // One write, so that no other thread's line comes between.
      std::cerr << "backend: " + name_ + " failed, from now on " + std::string(fallback_->name()) +
                       " (" + std::string(status.message()) + ")\n";
    }
  }
  fallback_->Evaluate(parameters, segments);
}

absl::Status StagedBackend::TryEvaluate(const EvaluateParameters& parameters,
                                        std::span<const Segment> segments) const {
  Lease lease(*this);
  std::vector<PendingSums> sums;
  absl::Status status;
  size_t segment = 0;
  size_t first = 0;
  for (size_t turn = 0; segment < segments.size() && status.ok(); ++turn) {
    Slot& slot = lease.pair().slots[turn % 2];
    status = slot.Finish(sums);
    if (!status.ok()) break;
    slot.batch.Reset(parameters);
    while (segment < segments.size()) {
      const size_t left = segments[segment].behavior.sampled_log_probs.size() - first;
      const size_t taken = slot.batch.Take(segments[segment], first);
      if (taken == 0 && left > 0) break;
      first += taken;
      if (taken == left) {
        ++segment;
        first = 0;
      }
    }
    if (!slot.batch.empty()) status = slot.Start();
  }
  for (Slot& slot : lease.pair().slots) status.Update(slot.Finish(sums));
  if (!status.ok()) return status;
  for (const PendingSums& pending : sums) *pending.into += pending.sums;
  return absl::OkStatus();
}

}  // namespace sis::cuda
