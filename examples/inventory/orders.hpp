#ifndef EXAMPLES_INVENTORY_ORDERS_HPP
#define EXAMPLES_INVENTORY_ORDERS_HPP

/// What the shop has to do: order lines and the stock to begin with, read from CSV files.

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace inventory {

struct OrderLine {
  std::int64_t order_id = 0;
  std::int64_t line_no = 0;
  std::string sku;
  std::int64_t quantity = 0;
};

struct Stock {
  std::string sku;
  std::int64_t quantity = 0;
};

/// Plain CSV without quotes. Errors name the file and the line.
class CsvReader {
 public:
  CsvReader(const std::filesystem::path& path, std::string_view header)
      : path_(path.string()), input_(path) {
    if (!input_) throw std::runtime_error(fmt::format("{}: cannot be read", path_));
    for (const char c : header) column_count_ += c == ',' ? 1U : 0U;
    next();
    if (line_ != header) fail(fmt::format("the first line is not \"{}\"", header));
  }

  /// False at the end of the file.
  bool next() {
    if (!std::getline(input_, line_)) return false;
    ++line_number_;
    if (line_.ends_with('\r')) line_.pop_back();
    split();
    return true;
  }

  const std::string& text(std::size_t column) const {
    if (columns_[column].empty()) fail(fmt::format("column {} is empty", column + 1));
    return columns_[column];
  }

  std::int64_t number(std::size_t column, std::int64_t min) const {
    const auto& text = columns_[column];
    const auto* end = text.data() + text.size();
    std::int64_t value = 0;
    const auto result = std::from_chars(text.data(), end, value);
    if (result.ec != std::errc{} || result.ptr != end || value < min) {
      fail(fmt::format("\"{}\" is not a number from {} up", text, min));
    }
    return value;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw std::runtime_error(fmt::format("{}:{}: {}", path_, line_number_, what));
  }

 private:
  void split() {
    columns_.assign(1, {});
    for (const char c : line_) {
      if (c == ',') {
        columns_.emplace_back();
      } else {
        columns_.back() += c;
      }
    }
    if (columns_.size() != column_count_) fail(fmt::format("not {} columns", column_count_));
  }

  std::string path_;
  std::ifstream input_;
  std::string line_;
  std::vector<std::string> columns_;
  std::size_t column_count_ = 1;
  std::size_t line_number_ = 0;
};

inline std::vector<OrderLine> read_orders(const std::filesystem::path& path) {
  CsvReader csv{path, "order_id,line_no,sku,quantity"};
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  std::vector<OrderLine> lines;
  while (csv.next()) {
    OrderLine line{csv.number(0, 1), csv.number(1, 1), csv.text(2), csv.number(3, 1)};
    if (!seen.emplace(line.order_id, line.line_no).second) csv.fail("this order line came before");
    lines.push_back(std::move(line));
  }
  return lines;
}

inline std::vector<Stock> read_stock(const std::filesystem::path& path) {
  CsvReader csv{path, "sku,stock"};
  std::vector<Stock> stock;
  while (csv.next()) stock.push_back({csv.text(0), csv.number(1, 0)});
  return stock;
}

}  // namespace inventory

#endif
