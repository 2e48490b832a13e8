// Parses metrics as Prometheus does, for tests.
#pragma once

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace sis {

// Returns a map from series, as written in the exposition, to value. Fails the test if a series
// occurs twice.
inline std::map<std::string, double> Scrape(const std::vector<prometheus::MetricFamily>& families) {
  std::istringstream text(prometheus::TextSerializer().Serialize(families));
  std::map<std::string, double> series;
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(series.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << "twice: " << line;
  }
  return series;
}

}  // namespace sis
