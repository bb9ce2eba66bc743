#ifndef EXAMPLES_ORDER_SERVICE_ORDERS_HPP
#define EXAMPLES_ORDER_SERVICE_ORDERS_HPP

/// The orders and the stock, from CSV files.

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace order_service {

struct OrderLine {
  std::string sku;
  std::int64_t quantity = 0;
};

struct Order {
  std::int64_t id = 0;
  std::vector<OrderLine> lines;
};

struct Article {
  std::string sku;
  std::int64_t stock = 0;
  std::int64_t price = 0;  ///< in cents
};

struct Shop {
  std::vector<Order> orders;
  std::map<std::string, Article> articles;  ///< by SKU

  std::int64_t price(const Order& order) const {
    std::int64_t sum = 0;
    for (const auto& line : order.lines) sum += articles.at(line.sku).price * line.quantity;
    return sum;
  }
};

/// The rows below the header; throws unless each has as many fields as that.
inline std::vector<std::vector<std::string>> read_csv(const std::filesystem::path& path,
                                                      std::string_view header) {
  std::ifstream file{path};
  if (!file) throw std::runtime_error(fmt::format("cannot read {}", path.string()));
  const auto split = [](const std::string& text) {
    std::vector<std::string> fields;
    std::istringstream stream{text};
    for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
    return fields;
  };
  std::string line;
  if (!std::getline(file, line) || line != header) {
    throw std::runtime_error(fmt::format("{} must begin with \"{}\"", path.string(), header));
  }
  const auto width = split(line).size();
  std::vector<std::vector<std::string>> rows;
  while (std::getline(file, line)) {
    rows.push_back(split(line));
    if (rows.back().size() != width) {
      throw std::runtime_error(fmt::format("{}: not a row: \"{}\"", path.string(), line));
    }
  }
  return rows;
}

inline std::int64_t to_number(const std::string& text) {
  std::int64_t number = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) {
    throw std::runtime_error(fmt::format("not a number: \"{}\"", text));
  }
  return number;
}

/// Throws if a file is wrong. The lines of an order stand together.
inline Shop read_shop(const std::filesystem::path& orders, const std::filesystem::path& stock) {
  Shop shop;
  for (const auto& row : read_csv(stock, "sku,stock,price_cents")) {
    shop.articles[row[0]] = {row[0], to_number(row[1]), to_number(row[2])};
  }
  for (const auto& row : read_csv(orders, "order_id,line_no,sku,quantity")) {
    const auto id = to_number(row[0]);
    const auto quantity = to_number(row[3]);
    if (!shop.articles.contains(row[2]) || quantity < 1) {
      throw std::runtime_error(fmt::format("order {}: bad line with {}", id, row[2]));
    }
    if (shop.orders.empty() || shop.orders.back().id != id) shop.orders.push_back({id, {}});
    shop.orders.back().lines.push_back({row[2], quantity});
  }
  return shop;
}

}  // namespace order_service

#endif
