// Decoding a page of any bytes gives an error or records that encode to those bytes, and never
// reads beyond them.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/numerics/crc32c.h"
#include "kernels/page/encoded_page.h"
#include "kernels/testing/random_records.h"

namespace sis {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void Decode(std::span<const std::byte> bytes) {
  // A copy of exactly this size lets a sanitizer see a read beyond its end.
  const auto copy = std::make_unique<std::byte[]>(bytes.size());
  std::ranges::copy(bytes, copy.get());
  const absl::StatusOr<DecodedPage> page = DecodePage({copy.get(), bytes.size()});
  if (!page.ok()) return;
  std::vector<std::byte> again(PageBytes(page->header));
  EncodePage(page->header, page->records(), page->ranks, again);
  Require(std::ranges::equal(again, bytes));
}

// Takes numbers off the input; zeros when it ends.
class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint32_t Take(size_t size) {
    uint32_t value = 0;
    const size_t taken = std::min(size, bytes_.size());
    std::memcpy(&value, bytes_.data(), taken);
    bytes_ = bytes_.subspan(taken);
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
};

// A valid page that the input then spoils, under a right checksum: what lies behind the checksum is
// reached.
void DecodeSpoiled(Input input) {
  const uint32_t kind = input.Take(1);
  // Some with more slots than a byte counts.
  const int slots = static_cast<int>((kind / 3 % 8 == 7 ? 250 : 1) + input.Take(1) % 20);
  const PageHeader header{
      .encoding = static_cast<LogProbEncoding>(kind % 3),
      .slots = slots,
      .vocabulary_size = static_cast<int32_t>(slots + 20 + input.Take(2)),
      .first_position = input.Take(4) / 2,
      .positions = 1 + input.Take(1) % 40,
      .version = kind / 3 % 2 == 0 ? PageVersion::kFixed : PageVersion::kRagged};
  std::vector<std::byte> page = Encode(header, RandomRecords(header, input.Take(1)));
  page.resize(page.size() - std::min<size_t>(page.size() - 8, input.Take(1) % 4));
  while (!input.empty()) {
    const size_t offset = input.Take(2) % page.size();
    page[offset] = static_cast<std::byte>(input.Take(1));
  }
  const uint32_t crc = ExtendCrc32c(0, std::span(page).subspan(8));
  std::memcpy(page.data() + 4, &crc, sizeof crc);
  Decode(page);
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data, size);
  sis::Decode(std::as_bytes(bytes));
  sis::DecodeSpoiled(sis::Input(bytes));
  return 0;
}
