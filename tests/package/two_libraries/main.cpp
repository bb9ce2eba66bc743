// Uses both libraries. Error categories are compared by their address, so they tell whether
// redlease is there once, or once in each library.
#include <iostream>
#include <string_view>

#include "libraries.hpp"

int main() {
  const auto order = take_order();
  const auto stock = take_stock();
  std::cout << order << ", " << stock << '\n';
  for (const auto& code : {order, stock}) {
    if (!code || code.category().name() != std::string_view{"redlease"}) return 1;
  }
  return (order == stock) == ONE_COPY ? 0 : 2;
}
