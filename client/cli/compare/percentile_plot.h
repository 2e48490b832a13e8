// Percentiles as a picture in SVG.
#pragma once

#include <string>
#include <vector>

namespace sis {

struct PercentileSeries {
  std::string name;
  std::vector<double> values;  // in any order; NaN is left out
};

struct PercentilePlot {
  std::string title;
  std::string unit;
  // A logarithmic axis from `floor` on, which smaller values count as; 0: a linear one.
  double floor = 0;
  // At most three; series i has the class "series-i".
  std::vector<PercentileSeries> series;
};

// An <svg> with the title as its first element: values against percentiles, 0 to 100.
std::string DrawPercentiles(const PercentilePlot& plot);

// Characters that HTML and XML give a meaning, escaped.
std::string EscapedForHtml(const std::string& text);

}  // namespace sis
