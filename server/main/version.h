// Of the whole project, as client/python/pyproject.toml has it.
#pragma once

namespace sis {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace sis
