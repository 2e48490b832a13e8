// What the modified ratio is: v1::Weight.
#pragma once

namespace sis {

enum class WeightKind { kSampled, kExpected };

}  // namespace sis
