#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace redlease::bench {

double median(std::vector<double> values) {
  if (values.empty()) throw std::logic_error("nothing was measured");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double quantile(std::vector<double> values, double which) {
  if (values.empty()) throw std::logic_error("nothing was measured");
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(which * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Ratio ratio(std::string to, const std::vector<double>& values, const std::vector<double>& base) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / base.at(i));
  const auto [min, max] = std::minmax_element(ratios.begin(), ratios.end());
  return {std::move(to), median(ratios), *min, *max};
}

void print(const std::vector<Row>& rows) {
  std::size_t width = 34;
  for (const auto& row : rows) width = std::max(width, row.name.size());
  fmt::print("\n{:<{}} {:>14} {:>12} {:<12} {:>6} {:>13}  {}\n", "what", width, "with", "median",
             "unit", "ratio", "(min-max)", "ratio to");
  for (const auto& row : rows) {
    fmt::print("{:<{}} {:>14} {:>12.{}f} {:<12}", row.name, width,
               fmt::format("{} {}", row.count, row.counted), row.value, row.value < 100 ? 2 : 0,
               row.unit);
    if (row.ratio) {
      fmt::print(" {:>6.2f} {:>13}  {}", row.ratio->median,
                 fmt::format("({:.2f}-{:.2f})", row.ratio->min, row.ratio->max), row.ratio->to);
    }
    fmt::print("\n");
  }
}

void write_json(const std::vector<Row>& rows, const std::string& file) {
  auto list = nlohmann::json::array();
  for (const auto& row : rows) {
    nlohmann::json entry{
        {"name", row.name}, {row.counted, row.count}, {"value", row.value}, {"unit", row.unit}};
    if (row.ratio) {
      entry["ratio"] = row.ratio->median;
      entry["ratio_to"] = row.ratio->to;
      entry["ratio_min"] = row.ratio->min;
      entry["ratio_max"] = row.ratio->max;
    }
    list.push_back(std::move(entry));
  }
  std::ofstream out{file};
  out << nlohmann::json{{"rows", std::move(list)}}.dump(2) << '\n';
  if (!out.flush()) throw std::runtime_error("cannot write " + file);
}

}  // namespace redlease::bench
