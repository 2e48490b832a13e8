#include "server/admin/gzip.h"

#include <zlib.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sis {
namespace {

// Of text about as small as the slower levels make it.
constexpr int kLevel = 1;
constexpr int kGzipWindow = 15 + 16;
constexpr int kMemoryLevel = 8;

}  // namespace

bool AcceptsGzip(absl::string_view accept_encoding) {
  for (const absl::string_view coding : absl::StrSplit(accept_encoding, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(coding, absl::MaxSplits(';', 1));
    if (absl::StripAsciiWhitespace(parts.first) != "gzip") continue;
    absl::string_view weight = absl::StripAsciiWhitespace(parts.second);
    double value = 1;
    return !absl::ConsumePrefix(&weight, "q=") || !absl::SimpleAtod(weight, &value) || value > 0;
  }
  return false;
}

std::string Gzipped(absl::string_view bytes) {
  z_stream stream = {};
  if (deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, kMemoryLevel, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    abort();  // out of memory
  }
  std::string gzipped(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = bytes.size();
  stream.next_out = reinterpret_cast<Bytef*>(gzipped.data());
  stream.avail_out = gzipped.size();
  deflate(&stream, Z_FINISH);  // there is room for all of it
  gzipped.resize(stream.total_out);
  deflateEnd(&stream);
  return gzipped;
}

}  // namespace sis
