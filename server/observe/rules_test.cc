#include "server/observe/rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sis {
namespace {

// Returns the text of each alert in the file, by name.
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

TEST(RulesTest, HaveAnAlertEach) {
  const std::map<std::string, std::string> alerts = Alerts();
  ASSERT_GT(alerts.size(), kRules.size());
  for (const Rule& rule : kRules) {
    SCOPED_TRACE(rule.name);
    const auto alert = alerts.find(std::string(rule.name));
    ASSERT_NE(alert, alerts.end());
    const std::string& text = alert->second;
    const bool critical = text.find("severity: critical") != std::string::npos;
    EXPECT_EQ(critical, rule.verdict == Verdict::kBroken);
    EXPECT_NE(text.find(absl::StrCat("{rule=\"", std::string(rule.name), "\"}")), std::string::npos)
        << text;
    EXPECT_FALSE(rule.action.empty());
  }
}

TEST(RulesTest, HaveEveryAlertOfARun) {
  for (const auto& alert : Alerts()) {
    if (alert.second.find("{rule=\"") == std::string::npos) continue;
    EXPECT_TRUE(std::ranges::count(kRules, alert.first, &Rule::name) == 1) << alert.first;
  }
}

}  // namespace
}  // namespace sis
