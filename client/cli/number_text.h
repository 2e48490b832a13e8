// Numbers for people, three significant digits each, with their units. What isn't finite is a dash.
#pragma once

#include <string>

namespace sis {

// 950, 12.3 k, 4.56 M.
std::string CountText(double count);
// 950 B, 1.5 GiB.
std::string BytesText(double bytes);
// Of 0 to 1: 83.4%.
std::string ShareText(double share);
// 0.0781, 1.2e-05.
std::string NumberText(double number);
// 45 s, 12 min, 3.5 h, 2.1 days.
std::string DurationText(double seconds);

}  // namespace sis
