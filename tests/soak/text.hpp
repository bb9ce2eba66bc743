// How violations are told.
#ifndef REDLEASE_TESTS_SOAK_TEXT_HPP
#define REDLEASE_TESTS_SOAK_TEXT_HPP

#include <chrono>
#include <sstream>
#include <string>
#include <vector>

namespace redlease::soak {

inline std::string ms(std::chrono::nanoseconds time) {
  std::ostringstream text;
  text.precision(3);
  text << std::fixed << std::chrono::duration<double, std::milli>{time}.count() << " ms";
  return text.str();
}

inline std::string join(const std::string& what, const std::vector<std::string>& lines) {
  std::string text = what;
  for (const auto& line : lines) text += "\n    " + line;
  return text;
}

}  // namespace redlease::soak

#endif
