// A diagnosis for programs and the page.
#pragma once

#include <nlohmann/json.hpp>

#include "client/compare/diagnosis.h"

namespace sis {

// An object: fault, undecided, verdict, checks, left_out, d, profile. Numbers that are not there
// are NaN, which is written as null.
nlohmann::ordered_json DiagnosisJson(const Diagnosis& diagnosis);

}  // namespace sis
