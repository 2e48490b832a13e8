// Which columns a FetchTopK wants, and their values in its answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cache/run_config.h"
#include "server/cache/sequence.h"
#include "server/wire/answers_in_segment.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class WantedColumns {
 public:
  // NotFound if the run has none of a name, InvalidArgument if it comes twice.
  static absl::StatusOr<WantedColumns> Parse(const v1::FetchTopKRequest& request,
                                             const RunConfig& config);

  bool empty() const { return columns_.empty(); }
  // Which columns of the run they are.
  std::vector<uint32_t> numbers() const;
  // Of all of them, and of what says which there are, for one position.
  size_t RowBytes() const;
  // Appends the bytes of their arrays, for so many rows: the values of all, then for each which
  // there are.
  void AddSizes(uint64_t rows, std::vector<uint64_t>& sizes) const;

  // Makes room for so many rows in here.
  void Resize(uint32_t rows);
  // Reads those of a piece's records into the rows from `row` on. Rows that are not read have none.
  void Read(const Sequence::Reader& reader, const Sequence::Reader::Piece& piece, uint32_t row);
  // Hands the rows over.
  void Move(v1::FetchTopKChunk& chunk);
  // Writes them from `first_row` on, into arrays that begin with this index.
  void Write(const AnswersInSegment& answers, size_t array, uint64_t first_row) const;
  // Says where those arrays are.
  void Locate(const AnswersInSegment& answers, size_t array, v1::FetchTopKChunk& chunk) const;

 private:
  struct Wanted {
    uint32_t column;
    uint32_t width;
    std::string values = {};   // [rows, width]
    std::string present = {};  // [rows]
  };
  std::vector<Wanted> columns_;
};

}  // namespace sis
