// The values that a sequence has of its run's columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "server/cache/column.h"
#include "server/memory/arena.h"
#include "server/memory/byte_budget.h"

namespace sis {

// Not thread-safe; the sequence that owns it locks, and sees to it that values are only where
// records are. Const members may be called side by side.
class SequenceColumns {
 public:
  // Both must outlive the object. What it holds is charged to the budget, which gets it back.
  SequenceColumns(Arena& arena, ByteBudget& budget) : arena_(arena), budget_(budget) {}
  ~SequenceColumns();
  SequenceColumns(const SequenceColumns&) = delete;
  SequenceColumns& operator=(const SequenceColumns&) = delete;

  // Charged besides the values of 64 positions: their places in the index, and a share of this.
  static constexpr int64_t kIndexBytes = 160;

  bool empty() const { return pages_.empty(); }

  // What adding values from a position on will charge; to a sequence that has none, if `present` is
  // null.
  static int64_t BytesToAdd(const SequenceColumns* present, uint32_t first_position,
                            std::span<const ColumnValues> values);
  // AlreadyExists where there is another value, DataLoss if what is there can't be compared. Equal
  // values may come again.
  absl::Status CheckFits(uint32_t first_position, std::span<const ColumnValues> values) const;
  // Makes room for values, and charges it. ResourceExhausted changes nothing.
  absl::Status Reserve(uint32_t first_position, std::span<const ColumnValues> values);
  // Gives back what is reserved and holds no value.
  void GiveBack(uint32_t first_position, std::span<const ColumnValues> values);
  // Adds values that fit, for which there is room. Returns how many positions of a column had none.
  int64_t Add(uint32_t first_position, std::span<const ColumnValues> values);
  // Drops the values from position `length` on.
  void Truncate(uint32_t length);

  // Copies the values of present.size() positions, [T, width], and says which there are: the others
  // are zero. Damaged ones are not there.
  void Read(uint32_t column, uint32_t first_position, std::span<std::byte> values,
            std::span<uint8_t> present) const;
  // Whether the column has values at all of these positions.
  bool Has(uint32_t column, uint32_t first_position, uint32_t count) const;
  // Calls visit(first_position, values) for consecutive positions, by column and position; they
  // cover all that is there. DataLoss if something is damaged.
  absl::Status ForEach(
      const std::function<void(uint32_t first_position, const ColumnValues& values)>& visit) const;

 private:
  // Of a column and of page `number`: 64 positions, as in server/cache/page.h.
  using Key = std::pair<uint32_t, uint32_t>;
  struct Page {
    Arena::Allocation block;  // [64, width]
    uint32_t width = 0;
    uint64_t present = 0;  // bit i: of the i-th position
    uint64_t checksum = 0;

    std::span<std::byte> Value(uint32_t index) const {
      return block.bytes().subspan(size_t{index} * width, width);
    }
    bool damaged() const;
    // Drops the values of these positions.
    void Drop(uint64_t positions);
  };
  using Pages = absl::btree_map<Key, Page>;

  void Erase(Pages::iterator& page);

  Arena& arena_;
  ByteBudget& budget_;
  Pages pages_;
};

}  // namespace sis
