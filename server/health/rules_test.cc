#include "server/health/rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sis {
namespace {

// What the file says of each alert, by name.
std::map<std::string, std::string> Alerts() {
  std::stringstream text;
  text << std::ifstream("deploy/prometheus/sis.alerts.yaml").rdbuf();
  std::map<std::string, std::string> alerts;
  const std::vector<std::string> parts = absl::StrSplit(text.str(), "- alert: ");
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t line = parts[i].find('\n');
    alerts[parts[i].substr(0, line)] = parts[i].substr(line);
  }
  return alerts;
}

TEST(RulesTest, AreThoseOfTheAlerts) {
  const std::map<std::string, std::string> alerts = Alerts();
  ASSERT_GT(alerts.size(), kRules.size());
  for (const Rule& rule : kRules) {
    SCOPED_TRACE(rule.name);
    const auto alert = alerts.find(std::string(rule.name));
    ASSERT_NE(alert, alerts.end());
    const std::string& text = alert->second;
    const bool critical = text.find("severity: critical") != std::string::npos;
    EXPECT_EQ(critical, rule.verdict == Verdict::kBroken);
    // By the same number, or by what this server found.
    const std::string found =
        absl::StrCat("sis_run_findings{rule=\"", std::string(rule.name), "\"}");
    const std::regex beyond(absl::StrCat("[<>=] ", rule.threshold, "( \\*|\\s|$)"));
    EXPECT_TRUE(text.find(found) != std::string::npos || std::regex_search(text, beyond)) << text;
    EXPECT_FALSE(rule.action.empty());
    // Where it says how far back it looks, it is as far as here.
    if (text.find("increase(sis_refused") != std::string::npos ||
        text.find("increase(sis_evicted") != std::string::npos) {
      EXPECT_NE(text.find(absl::StrCat("[", absl::ToInt64Minutes(kWindow), "m]")),
                std::string::npos);
    }
  }
  EXPECT_NE(alerts.at("SisDSisNearD").find(absl::StrCat("> ", kLeastDeviation)), std::string::npos);
}

TEST(RulesTest, HaveEveryAlertOfARun) {
  for (const auto& alert : Alerts()) {
    if (alert.second.find("$labels.run }}") == std::string::npos) continue;
    EXPECT_TRUE(std::ranges::count(kRules, alert.first, &Rule::name) == 1) << alert.first;
  }
}

}  // namespace
}  // namespace sis
