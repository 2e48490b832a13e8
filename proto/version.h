// Of the whole project, as client/python/sis/__init__.py has it.
#pragma once

namespace sis {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace sis
