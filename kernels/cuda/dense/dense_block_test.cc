// The dense kernel's code, run on the host.
#include "kernels/cuda/dense/dense_block.h"

#include <gtest/gtest.h>

#include "kernels/cuda/dense/dense_on_host.h"
#include "kernels/cuda/dense/dense_suite.h"

namespace sis::cuda {
namespace {

class Host final : public DenseRunner {
 public:
  std::shared_ptr<std::byte> Allocate(size_t bytes) const override {
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(::operator new(bytes)),
                                      [](std::byte* memory) { ::operator delete(memory); });
  }
  absl::Status Run(DenseStep step, const DenseTask& task) const override {
    RunDenseOnHost(step, task);
    return absl::OkStatus();
  }
};

TEST(DenseBlock, GivesTheBytesOfTheHost) { ExpectTheBytesOfTheHost(Host()); }
TEST(DenseBlock, GivesTheBytesOfTheHostByShards) { ExpectTheBytesOfTheHostByShards(Host()); }
TEST(DenseBlock, FindsErrors) { ExpectErrorsAreFound(Host()); }

}  // namespace
}  // namespace sis::cuda
