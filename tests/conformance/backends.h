// Every implementation of Backend that runs on this machine. The tests of this folder run over all
// of them: a new backend is added to backends.cc, and has then to pass what the scalar one passes.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/backend.h"

namespace sis {

std::vector<const Backend*> Backends();

// Base of the parametrised suites.
class BackendTest : public testing::TestWithParam<const Backend*> {
 protected:
  static const Backend& backend() { return *GetParam(); }
};

inline std::string BackendName(const testing::TestParamInfo<const Backend*>& info) {
  std::string name(info.param->name());
  std::ranges::replace_if(
      name, [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

}  // namespace sis

// Runs a suite derived from BackendTest over all backends.
#define SIS_INSTANTIATE_BACKENDS(suite)                                           \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::ValuesIn(::sis::Backends()), \
                           ::sis::BackendName)
