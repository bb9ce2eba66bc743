// What a measurement yields: rows with the median of all rounds and their spread, as a table for
// people and as JSON for programs.
#ifndef REDLEASE_BENCH_REPORT_HPP
#define REDLEASE_BENCH_REPORT_HPP

#include <optional>
#include <string>
#include <vector>

namespace redlease::bench {

// A ratio compares within one round, in which both sides ran one after the other; the row has the
// median of the rounds' ratios, and the least and the greatest.
struct Ratio {
  std::string to;
  double median = 0;
  double min = 0;
  double max = 0;
};

struct Row {
  std::string name;
  int count = 1;  // of what took part
  double value = 0;
  std::string unit;
  std::optional<Ratio> ratio{};
  std::string counted = "threads";
};

double median(std::vector<double> values);
double quantile(std::vector<double> values, double which);  // 0 the least, 1 the greatest
Ratio ratio(std::string to, const std::vector<double>& values, const std::vector<double>& base);

void print(const std::vector<Row>& rows);
void write_json(const std::vector<Row>& rows, const std::string& file);

}  // namespace redlease::bench

#endif
