// The version of the project, equal to that in client/python/sis/__init__.py.
#pragma once

namespace sis {

inline constexpr char kVersion[] = "0.2.0";

}  // namespace sis
