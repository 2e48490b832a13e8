#include "client/cli/number_text.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sis {
namespace {

constexpr char kNone[] = "-";

std::string Scaled(double value, double base, std::initializer_list<const char*> units) {
  if (!std::isfinite(value)) return kNone;
  const char* unit = *units.begin();
  for (auto next = units.begin() + 1; next != units.end() && std::abs(value) >= base - 0.5;
       ++next) {
    value /= base;
    unit = *next;
  }
  // Up to 1023 of a unit: not 1.02e+03.
  std::string text =
      std::abs(value) >= 999.5 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.3g", value);
  return *unit == '\0' ? text : absl::StrCat(text, " ", unit);
}

}  // namespace

std::string CountText(double count) { return Scaled(count, 1000, {"", "k", "M", "G", "T"}); }

std::string BytesText(double bytes) {
  return Scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string ShareText(double share) {
  if (!std::isfinite(share)) return kNone;
  const double percent = 100 * share;
  if (percent != 0 && std::abs(percent) < 0.1) return absl::StrFormat("%.2g%%", percent);
  // So that less than everything doesn't read as 100.0%.
  const int decimals = percent > 99.95 && percent < 100 ? 2 : 1;
  return absl::StrFormat("%.*f%%", decimals, percent);
}

std::string NumberText(double number) {
  return std::isfinite(number) ? absl::StrFormat("%.3g", number) : kNone;
}

std::string DurationText(double seconds) {
  if (!std::isfinite(seconds)) return kNone;
  if (seconds < 90) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 90 * 60) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 36 * 3600) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f days", seconds / 86400);
}

}  // namespace sis
