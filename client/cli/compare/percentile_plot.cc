#include "client/cli/compare/percentile_plot.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sis {
namespace {

// In the units of the picture.
constexpr double kWidth = 460, kHeight = 240;
constexpr double kLeft = 58, kRight = 12, kTop = 12, kBottom = 40;

// From values to heights in the picture.
class Axis {
 public:
  Axis(double floor, double least, double most) : logarithmic_(floor > 0) {
    low_ = logarithmic_ ? std::floor(std::log10(std::max(least, floor))) : std::min(0.0, least);
    high_ = logarithmic_ ? std::ceil(std::log10(std::max(most, floor))) : std::max(0.0, most);
    if (high_ <= low_) high_ = low_ + 1;
    floor_ = floor;
  }

  double Height(double value) const {
    const double place = logarithmic_ ? std::log10(std::max(value, floor_)) : value;
    return kTop + (high_ - place) / (high_ - low_) * (kHeight - kTop - kBottom);
  }

  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (logarithmic_) {
      const double step = std::ceil((high_ - low_) / 6);
      for (double power = low_; power <= high_; power += step) ticks.push_back(std::pow(10, power));
    } else {
      for (int i = 0; i <= 4; ++i) ticks.push_back(low_ + (high_ - low_) * i / 4);
    }
    return ticks;
  }

 private:
  bool logarithmic_;
  double floor_, low_, high_;
};

double Across(double percentile) { return kLeft + percentile / 100 * (kWidth - kLeft - kRight); }

std::vector<double> Sorted(const std::vector<double>& values) {
  std::vector<double> sorted;
  std::copy_if(values.begin(), values.end(), std::back_inserter(sorted),
               [](double value) { return std::isfinite(value); });
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

// The value that `percentile` percent of the sorted ones don't exceed, between neighbours in
// proportion.
double Percentile(const std::vector<double>& sorted, double percentile) {
  const double place = percentile / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = place - static_cast<double>(below);
  return sorted[below] + share * (sorted[above] - sorted[below]);
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         EscapedForHtml(text));
}

std::string Line(double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                         x1, y1, x2, y2);
}

}  // namespace

std::string EscapedForHtml(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string DrawPercentiles(const PercentilePlot& plot) {
  std::vector<std::vector<double>> sorted;
  double least = INFINITY, most = -INFINITY;
  for (const PercentileSeries& series : plot.series) {
    sorted.push_back(Sorted(series.values));
    if (sorted.back().empty()) continue;
    least = std::min(least, sorted.back().front());
    most = std::max(most, sorted.back().back());
  }
  std::string svg = absl::StrFormat(
      "<svg class=\"percentiles\" viewBox=\"0 0 %g %g\" role=\"img\"><title>%s</title>\n", kWidth,
      kHeight, EscapedForHtml(plot.title));
  if (least > most) {
    return absl::StrCat(svg, Text(kWidth / 2, kHeight / 2, "middle", "no values"), "</svg>\n");
  }
  const Axis axis(plot.floor, least, most);
  for (const double tick : axis.Ticks()) {
    absl::StrAppend(&svg, Line(kLeft, axis.Height(tick), kWidth - kRight, axis.Height(tick)),
                    Text(kLeft - 6, axis.Height(tick) + 4, "end", absl::StrFormat("%.3g", tick)));
  }
  for (const int percentile : {0, 25, 50, 75, 90, 100}) {
    absl::StrAppend(
        &svg, Line(Across(percentile), kTop, Across(percentile), kHeight - kBottom),
        Text(Across(percentile), kHeight - kBottom + 15, "middle", absl::StrCat(percentile)));
  }
  absl::StrAppend(&svg, Text((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", "percentile"));
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i].empty()) continue;
    absl::StrAppendFormat(&svg, "<polyline class=\"series-%d\" points=\"", i);
    for (double percentile = 0; percentile <= 100; percentile += 0.5) {
      absl::StrAppendFormat(&svg, "%.1f,%.1f ", Across(percentile),
                            axis.Height(Percentile(sorted[i], percentile)));
    }
    absl::StrAppend(&svg, "\"/>\n");
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace sis
